// What all front ends share. No imports: it is put before each of them.

// Return a function that draws in the next frame, once, however often it is called before.
function oncePerFrame(draw) {
  let queued = false;
  return () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      draw();
    });
  };
}

// Redraw when one of the model's names changes; on the site, also adopt the address's fragment, now and when it changes.
// Return what undoes it.
function follow(model, names, schedule, isStatic, adopt) {
  for (const name of names) model.on(`change:${name}`, schedule);
  if (!isStatic) {
    return () => {
      for (const name of names) model.off(`change:${name}`, schedule);
    };
  }
  const onHash = () => adopt(location.hash);
  onHash();
  window.addEventListener("hashchange", onHash);
  return () => window.removeEventListener("hashchange", onHash);
}

