// Scrolls an element into view. Returns its middle in the window, or null. Argument: its number in the list.
const element = (window.treeagentFound || [])[arguments[0] - 1];
if (!element || !element.isConnected) return null;
element.scrollIntoView({block: 'nearest', inline: 'nearest'});
const box = element.getClientRects()[0];
if (!box) return null;
const frame = element.ownerDocument === document ? null : element.ownerDocument.defaultView.frameElement;
const [left, top] = frame ? [frame.getBoundingClientRect().x, frame.getBoundingClientRect().y] : [0, 0];
return [Math.floor(left + box.x + box.width / 2), Math.floor(top + box.y + box.height / 2)];
