export function TimelinePage({ query }: { query: URLSearchParams }) {
  return (
    <div className="page live">
      <h1>Timeline</h1>
      <p>{query.toString()}</p>
    </div>
  );
}
