import type { BuildDetail } from "../../api/detail.ts";
import type { BuildLine } from "../../api/types.ts";
import { useSecond } from "../../store/clock.ts";
import { useSite } from "../../store/hooks.ts";
import { buildAdvice, buildFacts, buildMeaning, buildTimes, buildTitle, TONES } from "./build.ts";

/** State of the build of a function's compiled model, and the model once it is there. */
export function BuildPanel({ name, line, detail }: { name: string; line: BuildLine; detail: BuildDetail | null }) {
  const { store } = useSite();
  useSecond();
  const advice = buildAdvice(line, name);
  const meaning = buildMeaning(line);
  return (
    <section className="panel build-panel" aria-labelledby="build-title">
      <div className="panel-head">
        <h2 id="build-title">Compiled model</h2>
        <span className={TONES[line.state]}>{buildTitle(line, store.serverNow_s())}</span>
      </div>
      {(meaning || advice) && (
        <div className="panel-body small">
          {meaning && <p className="build-why">{meaning}</p>}
          {advice && (
            <p className="muted">
              try again: <code>{advice}</code>
            </p>
          )}
        </div>
      )}
      {line.state === "done" && detail?.state === "done" && <Compiled build={detail} />}
    </section>
  );
}

function Compiled({ build }: { build: BuildDetail }) {
  const times = buildTimes(build);
  return (
    <table className="plain">
      <tbody>
        {buildFacts(build).map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
        {times.map(({ rows, ordinary, compiled }) => (
          <tr key={rows}>
            <th scope="row">{rows === 1 ? "1 row" : `${rows} rows`}</th>
            <td>
              {compiled} instead of {ordinary}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
