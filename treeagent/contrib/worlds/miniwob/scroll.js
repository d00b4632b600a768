// Scrolls an element by most of its height. Arguments: its number, -1 or 1. Returns whether it scrolls.
let element = window.treeagentFound[arguments[0] - 1];
while (element && element.scrollHeight <= element.clientHeight + 1) element = element.parentElement;
if (!element) return false;
element.scrollTop += arguments[1] * Math.max(10, Math.floor(0.8 * element.clientHeight));
return true;
