import { useFetched } from "../../api/fetched.ts";
import type { Usage, UsageSums } from "../../api/types.ts";
import { count } from "../../design/format.ts";
import { useTurn } from "../../store/clock.ts";
import { KEYS_MAX, keyWords, moreKeys, usagePath } from "./usage.ts";

/** Seconds between two looks: the server stores usage every 10 s. */
const LOOK_S = 15;

/** Tokens of a function's model at /v1 in the last day and week, and by key. None before its first call there. */
export function UsagePanel({ name }: { name: string }) {
  const turn = useTurn(LOOK_S, true);
  const day = useFetched<Usage>(usagePath(name, "24h"), turn).data;
  const week = useFetched<Usage>(usagePath(name, "7d"), turn).data;
  if (!day || !week?.total.calls) return null;
  const more = moreKeys(week);
  return (
    <section className="panel usage-panel" aria-labelledby="usage-title">
      <div className="panel-head">
        <h2 id="usage-title">Usage at /v1</h2>
      </div>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Usage at /v1">
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">used in</th>
              <th scope="col" className="right">
                calls
              </th>
              <th scope="col" className="right">
                tokens in
              </th>
              <th scope="col" className="right">
                tokens out
              </th>
              <th scope="col" className="right" title="Calls that broke off, or whose answers said no tokens">
                unknown
              </th>
            </tr>
          </thead>
          <tbody>
            <Row caption="last day" numbers={day.total} />
            <Row caption="last 7 days" numbers={week.total} />
          </tbody>
          <tbody className="usage-keys">
            <tr>
              <th scope="rowgroup" colSpan={5}>
                last 7 days by key
              </th>
            </tr>
            {week.items.slice(0, KEYS_MAX).map((item) => (
              <Row key={item.key} caption={keyWords(item)} numbers={item} />
            ))}
          </tbody>
        </table>
      </div>
      {more > 0 && (
        <p className="panel-body small muted">
          and {count(more)} more keys: <code>fnctl usage {name} --by key --since 7d</code>
        </p>
      )}
    </section>
  );
}

function Row({ caption, numbers }: { caption: string; numbers: UsageSums }) {
  const cells = [numbers.calls, numbers.tokens_in, numbers.tokens_out, numbers.unknown];
  return (
    <tr>
      <th scope="row">{caption}</th>
      {cells.map((value, at) => (
        <td key={at} className="right" title={value.toLocaleString("en-US")}>
          {count(value)}
        </td>
      ))}
    </tr>
  );
}
