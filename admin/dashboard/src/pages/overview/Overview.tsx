import { useNamesVersion, useSite } from "../../store/hooks.ts";

export function Overview({ query }: { query: URLSearchParams }) {
  useNamesVersion();
  const { store } = useSite();
  return (
    <div className="page live">
      <h1>Overview</h1>
      <p>
        {store.functions.size} functions {query.toString()}
      </p>
      <ul>
        {[...store.functions.keys()].slice(0, 20).map((name) => (
          <li key={name}>
            <a href={`#/fn/${name}`}>{name}</a>
          </li>
        ))}
      </ul>
    </div>
  );
}
