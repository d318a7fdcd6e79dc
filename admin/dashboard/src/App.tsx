import { useCallback, useEffect, useState } from "react";
import { Client } from "./api/client.ts";
import { forgetKey, keepKey, keptKey, takeKeyFromAddress } from "./api/key.ts";
import { Problem, wordsOf } from "./api/problem.ts";
import type { Session } from "./api/types.ts";
import { Login } from "./pages/Login.tsx";
import { Pages } from "./pages/Pages.tsx";
import { PublicDocs } from "./docs/PublicDocs.tsx";
import { useRoute } from "./route/address.ts";

type Entry =
  | { at: "door"; why: string }
  | { at: "asking" }
  | { at: "inside"; client: Client; session: Session };

/** The login until a key is accepted, then the pages. */
export function App() {
  const [entry, setEntry] = useState<Entry>(() => (takeKeyFromAddress() ?? keptKey() ? { at: "asking" } : { at: "door", why: "" }));

  const route = useRoute();

  const leave = useCallback((why: string) => {
    forgetKey();
    setEntry({ at: "door", why });
  }, []);

  const enter = useCallback(
    async (key: string) => {
      setEntry({ at: "asking" });
      const client = new Client(key, (problem) => leave(`The key is no longer accepted: ${problem.message}`));
      try {
        const session = await client.get<Session>("/session");
        keepKey(key);
        setEntry({ at: "inside", client, session });
      } catch (error) {
        const isRefused = error instanceof Problem && (error.status === 401 || error.status === 403);
        if (isRefused) leave(`The key is not accepted: ${error.message}`);
        // An unreachable server has not rejected the key: keep it for the next attempt.
        else setEntry({ at: "door", why: `Cannot connect: ${wordsOf(error)}` });
      }
    },
    [leave],
  );

  useEffect(() => {
    const key = keptKey();
    if (key) void enter(key);
    const pasted = () => {
      const next = takeKeyFromAddress();
      if (next) void enter(next);
    };
    window.addEventListener("hashchange", pasted);
    return () => window.removeEventListener("hashchange", pasted);
  }, [enter]);

  if (entry.at === "inside") {
    return <Pages key={entry.client.key} client={entry.client} session={entry.session} onLeave={leave} />;
  }
  if (route.page === "docs" && entry.at === "door") return <PublicDocs />;
  return <Login why={entry.at === "door" ? entry.why : ""} isAsking={entry.at === "asking"} known={keptKey() ?? ""} onKey={(key) => void enter(key)} />;
}
