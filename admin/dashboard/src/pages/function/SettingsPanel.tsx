import type { ExchangeLimits, FunctionDetail, FunctionRow } from "../../api/types.ts";
import { count, mebibytes } from "../../design/format.ts";
import { exactly } from "../../timeline/words.ts";

const ALIASES_SHOWN = 10;

type Group = [string, [string, string][]];

function modelGroups({ limits, batching }: FunctionDetail): Group[] {
  return [
    [
      "limits",
      [
        ["timeout", exactly(limits.timeout_s)],
        ["wait", exactly(limits.wait_s)],
        ["queue", count(limits.queue)],
        ["body", mebibytes(limits.body_mib)],
        ["retry", limits.retry],
      ],
    ],
    [
      "batching",
      [
        ["mode", batching.mode],
        ["at most", batching.max_size ? `${batching.max_size} rows` : "as measured"],
        ["wait", `${batching.wait_ms} ms`],
      ],
    ],
  ];
}

function exchangeGroups({ limits }: FunctionDetail, exchange: ExchangeLimits): Group[] {
  return [
    [
      "limits",
      [
        ["concurrency", count(exchange.concurrency)],
        ["wait", exactly(limits.wait_s)],
        ["queue", count(limits.queue)],
        ["retry", limits.retry],
        ["WebSockets", exchange.websockets === "count" ? "take a slot" : "take no slot"],
      ],
    ],
    [
      "times",
      [
        ["first byte", exactly(exchange.first_byte_s)],
        ["stall", exchange.stall_s ? exactly(exchange.stall_s) : "no limit"],
        ["exchange", exactly(exchange.max_s)],
        ["drain", exactly(exchange.drain_s)],
      ],
    ],
  ];
}

/** The first ALIASES_SHOWN aliases; `fnctl alias ls` has all. */
function aliasGroups(aliases: string[]): Group[] {
  const shown = aliases.slice(0, ALIASES_SHOWN).map((alias): [string, string] => ["model", alias]);
  const more = aliases.length - shown.length;
  if (more > 0) shown.push(["and", `${more} more`]);
  return shown.length ? [["aliases at /v1", shown]] : [];
}

/** Settings of function.toml, `fnctl scale` and `fnctl alias`. Scaling comes from the function's line, which is live. */
export function SettingsPanel({ detail, line }: { detail: FunctionDetail; line: FunctionRow }) {
  const { aliases, device, exchange } = detail;
  const groups: Group[] = [
    [
      "scaling",
      [
        ["min", String(line.min)],
        ["max", String(line.max)],
        ["idle", exactly(line.idle_s)],
      ],
    ],
    ...(exchange ? exchangeGroups(detail, exchange) : modelGroups(detail)),
    [
      "device",
      [
        ["kind", device.kind],
        ["memory", device.memory_mib ? mebibytes(device.memory_mib) : "the driver's default"],
        ["share", device.share === 1 ? "whole" : String(device.share)],
        ...(device.count > 1 ? [["GPUs of a replica", String(device.count)] as [string, string]] : []),
      ],
    ],
    ...aliasGroups(aliases ?? []),
  ];
  return (
    <section className="panel" aria-labelledby="settings-title">
      <div className="panel-head">
        <h2 id="settings-title">Settings</h2>
      </div>
      <div className="settings panel-body">
        {groups.map(([name, pairs]) => (
          <div key={name}>
            <h3>{name}</h3>
            <dl>
              {pairs.map(([key, value]) => (
                <div key={`${key} ${value}`}>
                  <dt>{key}</dt>
                  <dd>{value}</dd>
                </div>
              ))}
            </dl>
          </div>
        ))}
      </div>
    </section>
  );
}
