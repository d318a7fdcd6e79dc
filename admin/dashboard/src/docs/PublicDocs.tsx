import { DocsPage } from "./DocsPage.tsx";
import "../pages/topbar.css";

/** The page about the routes for somebody without a key. */
export function PublicDocs() {
  return (
    <>
      <header className="topbar">
        <a className="brand" href="#/">
          <img src="./icon.svg" width="20" height="20" alt="" /> fngate
        </a>
        <span className="spread" />
        <a className="button quiet" href="#/">
          Sign in
        </a>
      </header>
      <main id="content" tabIndex={-1}>
        <DocsPage />
      </main>
    </>
  );
}
