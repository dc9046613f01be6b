// Zooms the chart by wheel, buttons and drag, and says what is under the pointer.
const svg = document.querySelector("figure svg"), said = document.querySelector("output");
const zoom = Panzoom(svg, {maxScale: 200, step: 0.4, cursor: "crosshair"});
svg.parentElement.addEventListener("wheel", zoom.zoomWithWheel);
svg.addEventListener("dblclick", () => zoom.reset({animate: false}));
for (const button of document.querySelectorAll("button"))
  button.addEventListener("click", () => zoom[button.value]({animate: false}));

// Offsets may be greater than a number can hold exactly: those of a facet are counted from its first one.
function placeIn(facet, event) {
  const box = facet.getBoundingClientRect(), {begin, end, origin, low, high, name} = facet.dataset;
  const across = (event.clientX - box.left) / box.width, up = (box.bottom - event.clientY) / box.height;
  if (across < 0 || across > 1 || up < 0 || up > 1) return null;
  const time = new Date(Number(begin) + across * (end - begin)).toISOString().slice(0, 23).replace("T", " ");
  const offset = BigInt(origin) + BigInt(Math.floor(Number(low) + up * (high - low)));
  return `${name}${time} UTC, offset ${offset.toLocaleString("en")}`;
}

svg.addEventListener("pointermove", event => {
  const facets = [...svg.querySelectorAll("[data-origin]")];
  const place = facets.map(facet => placeIn(facet, event)).find(Boolean);
  const shows = event.target.closest("[data-shows]")?.dataset.shows;
  said.textContent = [place, shows].filter(Boolean).join(": ");
  said.style.left = `${Math.min(event.clientX + 16, innerWidth - said.offsetWidth)}px`;
  said.style.top = `${event.clientY + 20}px`;
  said.hidden = !place;
});
svg.addEventListener("pointerleave", () => said.hidden = true);
