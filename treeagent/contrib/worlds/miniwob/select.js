// Selects an option. Arguments: number of the list, text. Returns whether there is such an option.
const element = window.treeagentFound[arguments[0] - 1];
const option = [...(element.options || [])].find(each => each.text.replace(/\s+/g, ' ').trim() === arguments[1]);
if (!option) return false;
option.selected = true;
for (const name of ['input', 'change']) element.dispatchEvent(new Event(name, {bubbles: true}));
return true;
