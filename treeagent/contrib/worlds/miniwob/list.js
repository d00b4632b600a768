// Returns the instruction, the visible elements as [role, name, state], whether the page has ended, and its reward.
const roles = {
  A: 'link', BUTTON: 'button', TEXTAREA: 'textbox', IMG: 'image', LI: 'listitem', TD: 'cell', TH: 'cell',
  CANVAS: 'canvas', H1: 'heading', H2: 'heading', H3: 'heading', LABEL: 'label',
};
const inputs = {
  button: 'button', submit: 'button', reset: 'button', checkbox: 'checkbox', radio: 'radio', range: 'slider',
};
const apart = ['query', 'query-wrap', 'click-canvas', 'attention-canvas', 'reward-display', 'sync-task-cover'];
const drawn = ['rect', 'circle', 'ellipse', 'polygon', 'line', 'path', 'text', 'image'];
const used = [
  'link', 'button', 'textbox', 'checkbox', 'radio', 'slider', 'combobox', 'listbox', 'tab', 'menuitem', 'option',
];
const found = [], rows = [];
const plain = text => text.replace(/\s+/g, ' ').trim();
const roleOf = element => {
  if (element.getAttribute('role')) return element.getAttribute('role');
  if (element.isContentEditable) return 'textbox';
  if (element.tagName === 'INPUT') return inputs[element.type] || 'textbox';
  if (element.tagName === 'SELECT') return element.multiple || element.size > 1 ? 'listbox' : 'combobox';
  return roles[element.tagName] || (drawn.includes(element.tagName) ? element.tagName : 'text');
};
const visit = element => {
  if (apart.includes(element.id) || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName)) return;
  if (element.tagName === 'IFRAME') return element.contentDocument && visit(element.contentDocument.body);
  const style = getComputedStyle(element);
  if (style.display === 'none' || style.opacity === '0') return;
  const box = element.getBoundingClientRect(), role = roleOf(element), use = used.includes(role);
  const own = plain([...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join(' '));
  const shape = drawn.includes(element.tagName) || role === 'canvas' || role === 'image';
  const bare = !element.children.length && (style.cursor === 'pointer' || style.backgroundImage !== 'none');
  const large = shape ? Math.max(box.width, box.height) >= 3 : box.width * box.height > 0;
  const shown = large && style.visibility === 'visible' && box.right > 0 && box.bottom > 0;
  if (shown && (use || own || shape || bare)) {
    const field = ['INPUT', 'TEXTAREA', 'SELECT'].includes(element.tagName);
    let name = field ? (element.labels && element.labels.length ? plain(element.labels[0].textContent) : '')
      : plain(use ? element.textContent : own);
    name = name || element.getAttribute('aria-label') || element.title || element.alt || element.placeholder || '';
    const states = [];
    if (role === 'button' && field) name = element.value;
    else if (role === 'textbox') states.push('value ' + JSON.stringify(field ? element.value : element.innerText));
    else if (role === 'slider') states.push('value ' + element.value);
    if (!name && !shape) name = element.className || element.id || '';
    if (element.checked) states.push('checked');
    if (element.disabled) states.push('disabled');
    if (element === element.ownerDocument.activeElement) states.push('focused');
    if (element.tagName === 'SELECT') {
      const words = options => JSON.stringify(options.map(option => plain(option.text)));
      const options = [...element.options];
      states.push('selected ' + words(options.filter(option => option.selected)), 'options ' + words(options));
    }
    if (shape) {
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2].map(Math.round);
      states.push(`at ${x},${y} size ${Math.round(box.width)}x${Math.round(box.height)}`);
      const fill = element.getAttribute('fill') || element.style.fill;
      if (fill) states.push('fill ' + fill);
    }
    const hidden = element.scrollHeight - element.clientHeight;
    if (hidden > 1 && element.clientHeight && ['auto', 'scroll'].includes(style.overflowY)) {
      states.push(`scrolled ${Math.round(element.scrollTop)} of ${hidden}`);
    }
    found.push(element);
    rows.push([role, plain(String(name)).slice(0, 500), states.join(' ')]);
  }
  if (element.tagName !== 'SELECT') [...element.children].forEach(visit);
};
visit(document.body);
window.treeagentFound = found;
const asked = core.getUtterance();
return [asked.utterance || asked, rows, WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
