import { useEffect, useMemo } from "react";
import { ActionsHost } from "../actions/ActionsHost.tsx";
import type { Client } from "../api/client.ts";
import type { Session } from "../api/types.ts";
import { DeployPage } from "../deploy/DeployPage.tsx";
import { DeployDesk } from "../deploy/run.ts";
import { DocsPage } from "../docs/DocsPage.tsx";
import { EventReader } from "../events/reader.ts";
import { OperationsPage } from "../operations/OperationsPage.tsx";
import { useRoute } from "../route/address.ts";
import { SiteContext } from "../store/hooks.ts";
import { Store } from "../store/store.ts";
import { FunctionPage } from "./function/FunctionPage.tsx";
import { HostPage } from "./host/HostPage.tsx";
import { Overview } from "./overview/Overview.tsx";
import { TimelinePage } from "./timeline/TimelinePage.tsx";
import { TopBar } from "./TopBar.tsx";

/** All pages behind the login: one store, fed by one event stream, and the page of the current route. */
export function Pages({ client, session, onLeave }: { client: Client; session: Session; onLeave: (why: string) => void }) {
  const site = useMemo(() => ({ store: new Store(), client, session, deploys: new DeployDesk(client) }), [client, session]);

  useEffect(() => {
    const reader = new EventReader(client, {
      onEvent: (event) => site.store.apply(event),
      onConnection: (connection) => site.store.setConnection(connection),
      onRefused: (problem) => onLeave(`The key is no longer accepted: ${problem.message}`),
    });
    const hurry = () => {
      if (!document.hidden) reader.hurry();
    };
    reader.start();
    window.addEventListener("online", hurry);
    document.addEventListener("visibilitychange", hurry);
    return () => {
      window.removeEventListener("online", hurry);
      document.removeEventListener("visibilitychange", hurry);
      reader.stop();
      site.deploys.close();
    };
  }, [client, site, onLeave]);

  return (
    <SiteContext value={site}>
      <ActionsHost>
        <TopBar onLeave={() => onLeave("")} />
        <main id="content" tabIndex={-1}>
          <Page />
        </main>
      </ActionsHost>
    </SiteContext>
  );
}

function Page() {
  const route = useRoute();
  switch (route.page) {
    case "overview":
      return <Overview query={route.query} />;
    case "function":
      return <FunctionPage key={route.name} name={route.name} query={route.query} />;
    case "host":
      return <HostPage key={route.name} name={route.name} />;
    case "timeline":
      return <TimelinePage query={route.query} />;
    case "deploy":
      return <DeployPage query={route.query} />;
    case "operations":
      return <OperationsPage />;
    case "docs":
      return <DocsPage />;
    case "nowhere":
      return (
        <div className="page">
          <h1>There is no such page</h1>
          <p>
            <a href="#/">To the overview</a>
          </p>
        </div>
      );
  }
}
