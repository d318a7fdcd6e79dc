import { useState } from "react";
import { functionPath } from "../../api/client.ts";
import type { TicketRow } from "../../api/types.ts";
import { useSite } from "../../store/hooks.ts";

/**
 * Opens the function's pages on their own host, with a ticket of this page's key. The address is
 * fetched at the click: a ticket is valid once, and for a minute.
 */
export function OpenPage({ name }: { name: string }) {
  const { client } = useSite();
  const [problem, setProblem] = useState("");
  const open = async () => {
    setProblem("");
    try {
      const { data } = await client.ask<TicketRow>(`${functionPath(name)}/tickets`, { method: "POST", json: {} });
      follow(`${location.protocol}//${data.address}`);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <>
      <button className="button" type="button" onClick={() => void open()}>
        Open
      </button>
      <span className="small muted" role="status">
        {problem}
      </span>
    </>
  );
}

/** Opens a page in a tab of its own, which cannot reach this one. */
function follow(address: string) {
  const link = document.createElement("a");
  link.href = address;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.click();
}
