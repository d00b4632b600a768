// Scrolls an element into view. Returns its middle in the window, [] if it stays out of sight, or null. Argument: its number in the list.
const element = (window.treeagentFound || [])[arguments[0] - 1];
if (!element || !element.isConnected) return null;
element.scrollIntoView({block: 'nearest', inline: 'nearest'});
const box = element.getClientRects()[0];
if (!box) return null;
const frame = element.ownerDocument === document ? null : element.ownerDocument.defaultView.frameElement;
const [left, top] = frame ? [frame.getBoundingClientRect().x, frame.getBoundingClientRect().y] : [0, 0];
const [x, y] = [Math.floor(left + box.x + box.width / 2), Math.floor(top + box.y + box.height / 2)];
return x < 0 || y < 0 || x >= innerWidth || y >= innerHeight ? [] : [x, y];
