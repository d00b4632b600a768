// Runs before a page's own scripts, to make observations reproducible. Every page starts on the same day, because a
// calendar would show another task on another day. treeagentSettle waits, for at most four seconds, until all timers of
// up to one second and all animation frames have run: otherwise observations would depend on the machine's speed.
const real = Date, shift = real.UTC(2024, 0, 15, 12) - real.now(), now = () => real.now() + shift;
window.Date = new Proxy(real, {
  construct: (target, given, made) => Reflect.construct(target, given.length ? given : [now()], made),
  apply: () => new real(now()).toString(),
  get: (target, name) => (name === 'now' ? now : target[name]),
});
const pending = new Set(), later = setTimeout, never = clearTimeout, frame = requestAnimationFrame;
window.setTimeout = (call, delay, ...given) => {
  const timer = later(() => {
    pending.delete(timer);
    typeof call === 'function' ? call(...given) : window.eval(call);
  }, delay);
  if (!(delay > 1000)) pending.add(timer);
  return timer;
};
window.clearTimeout = timer => { pending.delete(timer); never(timer); };
window.requestAnimationFrame = call => {
  const drawn = {};
  pending.add(drawn);
  return frame(time => { pending.delete(drawn); call(time); });
};
window.treeagentSettle = done => {
  const patience = performance.now() + 4000;
  const wait = () => frame(pending.size && performance.now() < patience ? wait : () => frame(() => done()));
  wait();
};
