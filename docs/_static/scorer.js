// Pages come before attributes: a reader who searches for "mask" wants the page on masks, and then the six properties.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const query = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase();
    const inTitle = query && title.toLowerCase().includes(query);
    if (kind === "object") return score / 10;
    return score + (inTitle ? 30 : 0) - (docname.startsWith("reference/") ? 5 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
