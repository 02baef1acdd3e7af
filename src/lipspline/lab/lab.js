// The lab: sends what is chosen, shows what is promised, and follows a reconstruction as it runs.
"use strict";
(() => {
  const form = document.getElementById("request");
  const status = document.getElementById("status");
  const at = (id) => document.getElementById(id);
  let choices = { images: [], models: [] };
  let running = null;
  let solved = null; // the settings whose result is shown
  let pictured = null; // the settings whose image is shown
  const fixed = new Set(); // of noise level and β, what somebody has chosen
  let suited = {}; // what the program chooses for them

  function say(text, error = false) {
    status.textContent = text;
    status.classList.toggle("error", error);
  }
  function clear() {
    if (running === null) say("");
  }
  async function ask(path, options = {}) {
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }
  const send = (path, value) => ask(path, { method: "POST", body: JSON.stringify(value) });
  const attempt = (action) => action().catch((error) => say(error.message, true));

  const source = () => choices.images.find((one) => one.name === form.elements.image.value);
  function kind() {
    const chosen = source();
    return chosen && chosen.content !== "images" ? chosen.modality : form.elements.kind.value;
  }
  const model = () => choices.models.find((one) => one.name === form.elements.model.value);
  const denoises = () => model() !== undefined && model().kind === "denoiser";
  // What is left to the program is null; what the prior does not have is left to it too.
  function settings() {
    const value = (name) => form.elements[name].value;
    const chosen = (name) => (denoises() && fixed.has(name) ? Number(value(name)) : null);
    return {
      image: value("image"), slice: Number(value("slice")), kind: kind(), acceleration: Number(value("acceleration")),
      angles: Number(value("angles")), noise: Number(value(`noise-${kind()}`)), seed: 0, model: value("model"),
      strength: factor(), level: model().levels ? chosen("level") : null, beta: chosen("beta"),
      contraction: denoises() ? Number(value("contraction")) : 1,
    };
  }
  const factor = () => Number((2 ** Number(form.elements.strength.value)).toPrecision(3));
  function options(select, names, chosen) {
    select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  }
  function groups(select, chosen) {
    const kinds = { energy: "Energies, minimised", denoiser: "Denoisers, plug-and-play" };
    const found = [...new Set(choices.models.map((one) => one.kind))];
    select.replaceChildren(...found.map((name) => {
      const group = document.createElement("optgroup");
      group.label = kinds[name];
      const members = choices.models.filter((one) => one.kind === name);
      group.append(...members.map((one) => new Option(one.name, one.name, false, one.name === chosen)));
      return group;
    }));
  }
  async function fill(chosen) {
    choices = await ask("/choices");
    const names = choices.images.map((one) => one.name);
    options(form.elements.image, names, chosen ?? names[0]);
    groups(form.elements.model, form.elements.model.value || choices.models[0].name);
    if (choices.running !== null && running === null) follow(choices.running, null);
  }
  // Another image: its middle slice, the kind of scan that suits it, and data of a file as they were measured.
  function turnTo() {
    const chosen = source();
    form.elements.slice.max = chosen.slices - 1;
    form.elements.slice.value = Math.floor(chosen.slices / 2);
    form.elements.kind.value = chosen.modality;
    form.elements.acceleration.value = chosen.content === "images" ? 4 : 1;
    form.elements.strength.value = 0;
    fixed.clear(); // what suited the other image need not suit this one
  }
  function show() {
    const { content, slices } = source();
    for (const part of form.querySelectorAll("[data-content]")) {
      const fits = part.dataset.content.split(" ").includes(content);
      part.hidden = !fits || (part.dataset.kind !== undefined && part.dataset.kind !== kind());
    }
    form.querySelector("[data-slices]").hidden = slices === 1;
    for (const part of form.querySelectorAll("[data-prior]")) {
      part.hidden = part.dataset.prior !== model().kind || (part.dataset.levels !== undefined && !model().levels);
    }
    form.querySelector("[data-factor]").hidden = denoises() && fixed.has("beta") && (fixed.has("level") || !model().levels);
    at("about").textContent = `${model().summary}.`;
    form.elements.automatic.hidden = factor() === 1 && !(denoises() && fixed.size);
    for (const input of form.querySelectorAll("label input[type=range]")) {
      input.closest("label").querySelector("output").value = shown(input);
    }
    const other = (those) => those !== null && running === null && JSON.stringify(settings()) !== those;
    at("stale").hidden = !other(solved);
    at("result").classList.toggle("stale", other(solved));
    at("iterate").closest("figure").classList.toggle("stale", other(pictured));
    at("iterate-note").hidden = !other(pictured);
  }
  function shown(input) {
    if (input.name === "strength") return factor() === 1 ? "automatic" : `× ${factor()} of automatic`;
    const automatic = input.name in suited && !fixed.has(input.name);
    return automatic ? `${Number(suited[input.name].toPrecision(2))}, automatic` : input.value;
  }
  function picture(id, address) {
    at(id).hidden = !address;
    if (address) at(id).src = address;
  }
  const decibel = (quality) => (quality && quality.psnr !== undefined ? `${quality.psnr.toFixed(2)} dB` : "");

  // What is promised changes with the settings; only the answer to the latest question counts.
  // Noise level and β are those that suit the measurement, until somebody chooses them.
  let asked = 0;
  let timer = null;
  let last = null; // the settings that were asked for last
  function preview() {
    show();
    last = JSON.stringify(settings());
    clearTimeout(timer);
    timer = setTimeout(() => attempt(async () => {
      const question = ++asked;
      const answer = await send("/preview", settings());
      if (question !== asked) return;
      picture("direct", answer.direct);
      picture("reference", answer.reference);
      at("reference").closest("figure").hidden = !answer.reference;
      at("direct-name").textContent = answer.direct_name;
      at("direct-psnr").textContent = decibel(answer.quality);
      at("summary").textContent = answer.summary;
      at("promise").innerHTML = answer.promise;
      at("chosen").textContent = answer.chosen;
      suited = denoises() ? answer.suited : {};
      for (const name of Object.keys(suited)) {
        if (suited[name] === null) delete suited[name];
        else if (!fixed.has(name)) form.elements[name].value = suited[name];
      }
      show();
    }), 150);
  }

  function present(section) {
    at("section").innerHTML = section;
    lipspline.activate(at("section").querySelector(".case"));
    at("result").hidden = false;
  }
  // What was reconstructed before the page was loaded, and the settings it was made with.
  function restore({ request, section, image, quality, chart }) {
    const there = choices.images.some((one) => one.name === request.image); // the oldest files go
    if (there) {
      form.elements.image.value = request.image;
      turnTo();
      for (const name of ["slice", "kind", "acceleration", "angles", "model", "contraction"]) {
        form.elements[name].value = request[name];
      }
      form.elements[`noise-${request.kind}`].value = request.noise;
      form.elements.strength.value = Math.log2(request.strength);
      for (const name of ["level", "beta"]) {
        if (request[name] === null) continue;
        fixed.add(name);
        form.elements[name].value = request[name];
      }
    }
    present(section);
    picture("iterate", image);
    at("iterate-psnr").textContent = decibel(quality);
    at("chart").innerHTML = chart;
    solved = there ? JSON.stringify(settings()) : "";
    pictured = solved;
  }

  function follow(job, wanted) {
    running = job;
    solved = null;
    pictured = wanted;
    picture("iterate", null);
    at("iterate-psnr").textContent = "";
    show();
    form.querySelector(".primary").disabled = true;
    form.elements.cancel.disabled = false;
    at("result").hidden = true;
    at("chart").replaceChildren();
    say("Running …");
    const events = new EventSource(`/jobs/${job}/events`);
    const on = (kind, react) => events.addEventListener(kind, (event) => react(JSON.parse(event.data)));
    const end = (text, error = false) => {
      events.close();
      running = null;
      form.querySelector(".primary").disabled = false;
      form.elements.cancel.disabled = true;
      say(text, error);
      show();
    };
    on("trial", (trial) => say(`Choosing the strength by measurements held out: trial ${trial.number} of at most ${trial.most}`));
    on("step", (step) => {
      const left = step.eta === null ? "" : `, about ${Math.ceil(step.eta)} s to go`;
      say(`Step ${step.calls}, change ${step.residual.toExponential(1)}${left}`);
    });
    on("image", (image) => {
      picture("iterate", image.source);
      at("iterate-psnr").textContent = decibel(image.quality);
      at("chart").innerHTML = image.chart;
    });
    on("done", (done) => {
      present(done.section);
      solved = wanted;
      end("Done. The result, with its certificate, is below.");
      preview(); // the strength is known now
    });
    on("failed", (failure) => end(failure.sentence, true));
    on("cancelled", () => end("Cancelled."));
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) end("The lab does not answer any more.", true);
    };
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = settings();
    attempt(async () => follow((await send("/jobs", wanted)).job, JSON.stringify(wanted)));
  });
  form.elements.cancel.addEventListener("click", () => attempt(() => send(`/jobs/${running}/cancel`, {})));
  form.elements.automatic.addEventListener("click", () => {
    fixed.clear();
    form.elements.strength.value = 0;
    clear();
    preview();
  });
  form.elements.file.addEventListener("change", (event) => attempt(async () => {
    const file = event.target.files[0];
    if (!file) return;
    say(`Reading ${file.name} …`);
    const query = `name=${encodeURIComponent(file.name)}&holds=${form.elements.holds.value}`;
    event.target.value = "";
    const answer = await ask(`/images?${query}`, { method: "POST", body: file });
    await fill(answer.name);
    turnTo();
    clear();
    preview();
  }));
  function changed(event) {
    if (["file", "holds"].includes(event.target.name)) return;
    if (["level", "beta"].includes(event.target.name)) fixed.add(event.target.name);
    if (event.target.name === "image") turnTo();
    clear();
    preview();
  }
  form.addEventListener("input", changed);
  form.addEventListener("change", (event) => { // not every way to choose from a list is an input
    if (event.target.tagName === "SELECT" && JSON.stringify(settings()) !== last) changed(event);
  });
  attempt(async () => {
    await fill();
    turnTo();
    if (choices.result && running === null) restore(await ask("/result"));
    preview();
  });
})();
