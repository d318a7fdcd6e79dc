import type { BuildDetail, BuildRow } from "../../api/types.ts";
import { useSecond } from "../../store/clock.ts";
import { useSite } from "../../store/hooks.ts";
import { buildAdvice, buildFacts, buildMeaning, buildTimes, buildTitle, deviceName, TONES } from "./build.ts";

/** State of the builds of a function's compiled models, and the models that are there. `line` stands for all types of
 * device: it is one that is not done, if any. */
export function BuildPanel({ name, line, builds }: { name: string; line: BuildRow; builds: BuildDetail[] }) {
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
      {builds.length > 1
        ? builds.map((build) => <DeviceBuild key={deviceName(build)} build={build} />)
        : line.state === "done" && builds.map((build) => build.state === "done" && <Compiled key="only" build={build} />)}
    </section>
  );
}

function DeviceBuild({ build }: { build: BuildDetail }) {
  const { store } = useSite();
  return (
    <>
      <div className="panel-body small build-device">
        <strong>{deviceName(build)}</strong> <span className={TONES[build.state]}>{buildTitle(build, store.serverNow_s())}</span>
        {build.reason && <p className="build-why">{build.reason}</p>}
      </div>
      {build.state === "done" && <Compiled build={build} />}
    </>
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
