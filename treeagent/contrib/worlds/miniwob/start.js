// Starts an episode without animations. Arguments: seed, mode, time limit in milliseconds.
const [seed, mode, limit] = arguments;
if (window.jQuery) jQuery.fx.off = true;
const still = document.createElement('style');
still.textContent = '* { transition: none !important; animation: none !important; }';
document.head.appendChild(still);
core.EPISODE_MAX_TIME = limit;
Math.seedrandom(seed);
core.setDataMode(mode);
core.startEpisodeReal();
