// The path of an event with its times, joined from what the authority and the fronts have noted.
//
// Groups: [first, last, wall clock of the begin of judging in ms, begin, judge, commit, started], durations in seconds.
// Fronts: [first, last, submitted or null, delivered, receivers] for the events of one request. `started`, `submitted`
// and `delivered` are of one monotonic clock.

const covers = ([first, last]) => (id) => first <= id && id <= last;

export function timesFrom(groups, fronts) {
  return (id) => {
    const group = groups.find((each) => covers(each)(id));
    const noted = fronts.filter((each) => covers(each)(id));
    const submitted = noted.map((each) => each[2]).find((each) => each !== null) ?? null;
    const written = noted.filter((each) => each[4] > 0);
    if (!group && !written.length) return null;
    const [, , wallMs, begin, judge, commit, started] = group ?? [];
    const origin = submitted ?? started ?? null; // times are counted from here
    const since = (value) => (origin === null || value === undefined ? null : value - origin);
    const alone = written.every(([first, last]) => first === last);
    return {
      submittedMs: group && submitted !== null ? wallMs + (submitted - started - begin) * 1000 : null,
      fromSubmit: submitted !== null,
      judged: group ? since(started + begin + judge) : null,
      committed: group ? since(started + begin + judge + commit) : null,
      delivered: written.length ? since(Math.max(...written.map((each) => each[3]))) : null,
      receivers: written.length ? (alone ? written.reduce((sum, each) => sum + each[4], 0) : null) : 0,
      known: noted.length > 0,
    };
  };
}
