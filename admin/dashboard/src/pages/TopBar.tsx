import { useRoute } from "../route/address.ts";
import { choose, useTheme } from "../design/theme.ts";
import { ConnectionLine } from "./ConnectionLine.tsx";
import "./topbar.css";

const TABS = [
  { page: "overview", hash: "#/", title: "Overview" },
  { page: "timeline", hash: "#/timeline", title: "Timeline" },
  { page: "operations", hash: "#/operations", title: "Operations" },
  { page: "docs", hash: "#/docs", title: "API" },
] as const;

export function TopBar({ onLeave }: { onLeave: () => void }) {
  const { page } = useRoute();
  const theme = useTheme();
  const other = theme === "dark" ? "light" : "dark";
  return (
    <header className="topbar">
      <a className="skip" href="#content" onClick={toContent}>
        To the content
      </a>
      <a className="brand" href="#/">
        <img src="./icon.svg" width="20" height="20" alt="" /> fngate
      </a>
      <nav aria-label="Pages">
        {TABS.map((tab) => (
          <a key={tab.page} href={tab.hash} aria-current={tab.page === page ? "page" : undefined}>
            {tab.title}
          </a>
        ))}
      </nav>
      <span className="spread" />
      <ConnectionLine />
      <button className="button quiet icon" type="button" onClick={() => choose(other)} aria-label={`Use ${other} colours`}>
        <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
          <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" strokeWidth="1.4" />
          <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />
        </svg>
      </button>
      <button className="button quiet" type="button" onClick={onLeave}>
        Sign out
      </button>
    </header>
  );
}

/** Skip link. The fragment holds the route, so a plain anchor cannot be used. */
function toContent(event: { preventDefault(): void }): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}
