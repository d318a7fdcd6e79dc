import { useActions } from "./ActionsHost.tsx";

/** Button that opens a function's menu. `isReachable`: the Tab key stops at it. */
export function ActionsButton({ name, isReachable = true }: { name: string; isReachable?: boolean }) {
  const { openMenu } = useActions();
  return (
    <button
      type="button"
      className="button quiet icon actions-button"
      tabIndex={isReachable ? 0 : -1}
      aria-haspopup="menu"
      aria-label={`Actions of ${name}`}
      onClick={(event) => openMenu(name, event.currentTarget)}
    >
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
        <g fill="currentColor">
          <circle cx="3" cy="8" r="1.5" />
          <circle cx="8" cy="8" r="1.5" />
          <circle cx="13" cy="8" r="1.5" />
        </g>
      </svg>
    </button>
  );
}
