import { createContext, useCallback, useContext, useSyncExternalStore } from "react";
import type { Client } from "../api/client.ts";
import type { BeatEvent, DeviceRow, FunctionRow, HostRow, ReplicaRow, Session } from "../api/types.ts";
import type { DeployDesk } from "../deploy/run.ts";
import type { Connection } from "../events/reader.ts";
import type { Activity } from "./activity.ts";
import { topic, type Store } from "./store.ts";

/** The objects that every page uses. */
export interface Site {
  store: Store;
  client: Client;
  session: Session;
  deploys: DeployDesk;
}

export const SiteContext = createContext<Site | null>(null);

export function useSite(): Site {
  const site = useContext(SiteContext);
  if (!site) throw new Error("this hook needs a SiteContext around it");
  return site;
}

/** The value of `read()`, updated when topic `name` changes. `read` must return the same value if nothing changed. */
export function useTopic<T>(name: string, read: (store: Store) => T): T {
  const { store } = useSite();
  const subscribe = useCallback((listener: () => void) => store.topics.subscribe(name, listener), [store, name]);
  return useSyncExternalStore(subscribe, () => read(store));
}

export const useFunction = (name: string): FunctionRow | undefined =>
  useTopic(topic.fn(name), (store) => store.functions.get(name));

export const useReplica = (id: string): ReplicaRow | undefined =>
  useTopic(topic.replica(id), (store) => store.replicas.get(id));

export const useDevice = (id: string): DeviceRow | undefined =>
  useTopic(topic.device(id), (store) => store.devices.get(id));

export const useHost = (name: string): HostRow | undefined =>
  useTopic(topic.host(name), (store) => store.hosts.get(name));

export const useActivity = (name: string): Activity => useTopic(topic.activity(name), (store) => store.activities.get(name));

export const useBeat = (): BeatEvent | null => useTopic(topic.beat, (store) => store.beat);

export const useConnection = (): Connection => useTopic(topic.connection, (store) => store.connection);

/** Version counter: recompute derived values when it changes. */
export const useNamesVersion = (): number => useTopic(topic.names, (store) => store.namesVersion);
export const useOrderVersion = (): number => useTopic(topic.order, (store) => store.orderVersion);
export const useReplicasVersion = (): number => useTopic(topic.replicas, (store) => store.replicasVersion);
export const useDevicesVersion = (): number => useTopic(topic.devices, (store) => store.devicesVersion);
export const useHostsVersion = (): number => useTopic(topic.hosts, (store) => store.hostsVersion);
export const useOperationsVersion = (): number => useTopic(topic.operations, (store) => store.operationsVersion);

/** Whether this key may see and check the logins of hosts. */
export const useIsAdmin = (): boolean => useSite().session.scopes.includes("admin");

/** Whether this key may deploy, scale, warm and delete, with the reason if not. */
export function useMayDeploy(): { may: boolean; why: string } {
  const { scopes } = useSite().session;
  const may = scopes.includes("admin") || scopes.includes("deploy");
  return { may, why: may ? "" : `this key has ${scopes.join(", ")}; changing functions needs the scope deploy` };
}
