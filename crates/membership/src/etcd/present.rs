//! The configuration in etcd, in a program that was built with it: see the [module above](super).
//!
//! Callers are threads that wait. Everything that talks to etcd is async, and runs on one thread
//! with one tokio runtime for each [`Etcd`].

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fmt;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, GetResponse, Identity,
    KeyValue, PutOptions, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::fault::EtcdFault;
use super::options::{EtcdOptions, read_private};
use crate::configuration::{Configuration, ConfigurationError, Helper};
use crate::membership::Membership;
use crate::stored;

pub(crate) const BUILT: bool = true;

/// One server may be silent while another answers. So the first attempt waits for this fraction of
/// the patience, and each further attempt twice as long as the one before, because all servers may
/// be slow.
const FIRST_SHARE: u32 = 8;
/// The time after which a caller that got no answer asks again, perhaps another server.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// The time after which background work tries again.
const PAUSE: Duration = Duration::from_millis(50);
/// The extra time that a caller waits, beyond its patience, for the thread that knows when the
/// patience is over.
const GRACE: Duration = Duration::from_secs(1);
/// The time after which an idle connection is probed. If a client probes more often than every 5 s,
/// etcd takes it for an attacker.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The time that a process whose key is gone has to put it again. It may only have been kept from
/// etcd, or etcd from every client. It is no longer than half of [`EtcdOptions::ttl`].
const SIGN_AGAIN: Duration = Duration::from_secs(1);
/// The shortest time between two times that orphans are named to a thread that asks. Each thread
/// that hears of orphans suspects all of them.
const ORPHANS_EVERY: Duration = Duration::from_millis(20);

/// A configuration in etcd, which client processes on any number of hosts share.
pub struct Etcd {
    // The helper. It is dropped first, because it uses the store.
    helper: Helper,
    store: Arc<Store>,
}

/// An [`Etcd`] without its helper.
struct Store {
    core: Arc<Core>,
    engine: Engine,
    /// Threads take turns to make changes.
    turn: Mutex<()>,
}

/// The membership that etcd had at a revision.
#[derive(Clone)]
struct Snapshot {
    /// The revision of the whole store. A higher one is later.
    revision: i64,
    /// The revision of the key's last change, which a change compares. It is 0 if there is no key.
    modified: i64,
    membership: Arc<Membership>,
}

/// What the watch has shown: everything up to some revision, and nothing later.
struct View {
    membership: Arc<Membership>,
    alive: BTreeSet<u64>,
    /// Processes that the membership names and that are not alive, each with the time since which,
    /// and its clients.
    missing: BTreeMap<u64, (Instant, Vec<u32>)>,
    asked: Instant,
}

/// The evidence that etcd has lost changes. From then on the configuration fails for good.
#[derive(Clone, Copy)]
enum Lost {
    /// The revision that was found, and the one that was known.
    Revisions(i64, i64),
    /// The generation of the membership that was found, and the one that was known.
    Generations(u64, u64),
}

struct Core {
    client: Client,
    endpoints: String,
    patience: Duration,
    ttl: Duration,
    cluster: u64,
    /// The folder of the cluster's keys, with a slash at its end.
    folder: String,
    process: u64,
    lease: AtomicI64,
    changes: AtomicU64,
    generation: AtomicU64,
    seen: Mutex<Snapshot>,
    view: Mutex<View>,
    /// The reason why etcd is not asked at the moment.
    away: Mutex<Option<String>>,
    lost: Mutex<Option<Lost>>,
}

impl Etcd {
    /// Opens the configuration of the cluster with this id, and makes it if it does not exist.
    pub fn open(options: &EtcdOptions, cluster: u64) -> Result<Etcd, ConfigurationError> {
        let endpoints = options.endpoints.join(",");
        let blame = |cause| ConfigurationError::Etcd { endpoints: endpoints.clone(), cause };
        let connecting = connecting(options).map_err(blame)?;
        let engine = Engine::start().map_err(|cause| blame(EtcdFault::System(cause)))?;
        let (options, patience) = (options.clone(), options.patience);
        let deadline = Instant::now() + patience;
        let waited = engine.wait(deadline, async move {
            let core = Core::connect(&options, cluster, connecting, deadline).await?;
            // This reports at once what is wrong with an existing value, before anything is put.
            core.look_at_everything(deadline).await?;
            let lease = core.sign(deadline).await.map_err(|cause| core.blame(cause))?;
            tokio::spawn(core.clone().keep_signed(lease));
            tokio::spawn(core.clone().keep_watching());
            Ok(core)
        });
        let core: Arc<Core> = waited.unwrap_or_else(|| Err(blame(EtcdFault::silent(patience))))?;
        let store = Arc::new(Store { core, engine, turn: Mutex::default() });
        store.update(&mut |_| {})?;
        let helper = Helper::start("remora-helper", store.clone());
        let helper = helper.map_err(|cause| store.core.blame(EtcdFault::System(cause)))?;
        Ok(Etcd { helper, store })
    }
}

impl Configuration for Etcd {
    fn generation(&self) -> u64 {
        self.store.generation()
    }

    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError> {
        self.store.update(change)
    }

    fn inspect(&self, look: &mut dyn FnMut(&Membership)) -> Result<(), ConfigurationError> {
        self.store.inspect(look)
    }

    fn refresh(&self) -> Result<(), ConfigurationError> {
        self.store.refresh()
    }

    fn cluster(&self) -> Option<u64> {
        self.store.cluster()
    }

    fn helper(&self) -> Option<&Helper> {
        Some(&self.helper)
    }

    fn process(&self) -> Option<u64> {
        self.store.process()
    }

    fn has_ended(&self, process: u64) -> bool {
        self.store.has_ended(process)
    }

    fn orphans(&self) -> Vec<u32> {
        self.store.orphans()
    }
}

impl Store {
    /// Makes the other thread do something, and waits for it. Fails at once if etcd is unreachable.
    fn wait<T: Send + 'static, F: Future<Output = Result<T, ConfigurationError>> + Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(Arc<Core>) -> F,
    ) -> Result<T, ConfigurationError> {
        let core = &self.core;
        core.check()?;
        if let Some(why) = &*lock(&core.away) {
            return Err(core.blame(EtcdFault::Away { patience: core.patience, why: why.clone() }));
        }
        let waited = self.engine.wait(deadline, work(core.clone()));
        let outcome = waited.unwrap_or_else(|| Err(core.blame(EtcdFault::silent(core.patience))));
        if let Err(ConfigurationError::Etcd { cause: EtcdFault::Away { why, .. }, .. }) = &outcome
            && lock(&core.away).replace(why.clone()).is_none()
        {
            tracing::warn!(endpoints = core.endpoints, why, "etcd does not answer: leases cannot be renewed or judged");
            self.engine.handle.spawn(core.clone().until_it_answers());
        }
        outcome
    }

    /// Returns the membership at some instant after this call began.
    fn newest(&self, deadline: Instant) -> Result<Snapshot, ConfigurationError> {
        let seen = self.core.seen();
        self.wait(deadline, |core| async move { core.newest(seen, deadline).await })
    }
}

impl Configuration for Store {
    fn generation(&self) -> u64 {
        self.core.generation.load(Ordering::Acquire)
    }

    fn cluster(&self) -> Option<u64> {
        Some(self.core.cluster)
    }

    fn update(&self, change: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError> {
        let (began, patience) = (Instant::now(), self.core.patience);
        let deadline = began + patience;
        let _turn = lock(&self.turn);
        let mut seen = self.core.seen();
        // An attempt that begins later would have too little time for an answer. Etcd would then
        // seem unreachable.
        while began.elapsed() < patience / 2 {
            let mut membership = (*seen.membership).clone();
            change(&mut membership);
            if seen.modified > 0 && membership == *seen.membership {
                // The closure changed nothing, perhaps because it saw an old membership.
                let newest = self.newest(deadline)?;
                if newest.modified == seen.modified {
                    return Ok(());
                }
                seen = newest;
                continue;
            }
            let was = seen.clone();
            let by = self.wait(deadline, |core| async move { core.replace(&was, membership, deadline).await })?;
            let Some(by) = by else { return Ok(()) };
            // Try again at once: the process that was faster may want to make another change, and
            // would be faster again.
            seen = by;
        }
        Err(self.core.blame(EtcdFault::Overtaken(began.elapsed())))
    }

    fn inspect(&self, look: &mut dyn FnMut(&Membership)) -> Result<(), ConfigurationError> {
        self.core.check()?;
        look(&self.core.seen().membership);
        Ok(())
    }

    fn refresh(&self) -> Result<(), ConfigurationError> {
        self.newest(Instant::now() + self.core.patience).map(|_| ())
    }

    fn process(&self) -> Option<u64> {
        Some(self.core.process)
    }

    fn has_ended(&self, process: u64) -> bool {
        // A process that has just begun to watch does not know since when the other one is missing.
        // It need not know: `orphans` is the call that must be certain.
        lock(&self.core.view).missing.contains_key(&process)
    }

    fn orphans(&self) -> Vec<u32> {
        // No client could suspect them now, and all clients would keep trying.
        if lock(&self.core.away).is_some() {
            return Vec::new();
        }
        // It is enough if one thread does this.
        let Ok(mut view) = self.core.view.try_lock() else { return Vec::new() };
        if view.missing.is_empty() || view.asked.elapsed() < ORPHANS_EVERY {
            return Vec::new();
        }
        view.asked = Instant::now();
        let mut orphans = Vec::new();
        for (_, clients) in view.missing.values().filter(|(since, _)| self.core.is_long(*since)) {
            orphans.extend(clients);
        }
        orphans.sort_unstable();
        orphans
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let core = self.core.clone();
        if lock(&core.away).is_some() {
            return; // otherwise the lease expires
        }
        let deadline = Instant::now() + core.patience;
        self.engine.wait(deadline, async move {
            let mut leases = core.client.lease_client();
            let revoked = timeout(core.patience, leases.revoke(core.lease.load(Ordering::Relaxed))).await;
            if !matches!(revoked, Ok(Ok(_))) {
                tracing::debug!("this process' lease runs out");
            }
        });
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { endpoints, folder, .. } = &*self.core;
        f.debug_struct("Etcd").field("endpoints", endpoints).field("folder", folder).finish_non_exhaustive()
    }
}

/// Requests to etcd, each of which ends at its deadline.
impl Core {
    async fn connect(
        options: &EtcdOptions,
        cluster: u64,
        connecting: ConnectOptions,
        deadline: Instant,
    ) -> Result<Arc<Core>, ConfigurationError> {
        let endpoints = options.endpoints.join(",");
        let connect = || Client::connect(options.endpoints.clone(), Some(connecting.clone()));
        let client = ask(options.patience, deadline, connect).await;
        let client = client.map_err(|cause| ConfigurationError::Etcd { endpoints: endpoints.clone(), cause })?;
        let membership = Arc::<Membership>::default();
        Ok(Arc::new(Core {
            client,
            endpoints,
            patience: options.patience,
            ttl: options.ttl,
            cluster,
            folder: format!("{}/{cluster:016x}/", options.prefix.trim_end_matches('/')),
            process: random(std::process::id().into()),
            lease: AtomicI64::new(0),
            changes: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            seen: Mutex::new(Snapshot { revision: 0, modified: 0, membership: membership.clone() }),
            view: Mutex::new(View {
                membership,
                alive: BTreeSet::new(),
                missing: BTreeMap::new(),
                asked: Instant::now(),
            }),
            away: Mutex::default(),
            lost: Mutex::default(),
        }))
    }

    /// Fails for good once etcd has lost changes. Etcd may later have a higher revision again, but
    /// of another history.
    fn check(&self) -> Result<(), ConfigurationError> {
        match *lock(&self.lost) {
            None => Ok(()),
            Some(Lost::Revisions(found, known)) => Err(self.blame(EtcdFault::WentBack { found, known })),
            Some(Lost::Generations(found, known)) => Err(self.blame(EtcdFault::Lost { found, known })),
        }
    }

    /// Records that etcd has lost changes. Returns the error.
    fn lose(&self, lost: Lost) -> ConfigurationError {
        lock(&self.lost).get_or_insert(lost);
        match lost {
            Lost::Revisions(found, known) => self.blame(EtcdFault::WentBack { found, known }),
            Lost::Generations(found, known) => self.blame(EtcdFault::Lost { found, known }),
        }
    }

    /// Whether a process has been missing for long enough to be taken for ended.
    fn is_long(&self, since: Instant) -> bool {
        since.elapsed() >= SIGN_AGAIN.min(self.ttl / 2)
    }

    fn blame(&self, cause: EtcdFault) -> ConfigurationError {
        ConfigurationError::Etcd { endpoints: self.endpoints.clone(), cause }
    }

    fn key(&self) -> String {
        format!("{}configuration", self.folder)
    }

    fn signs(&self) -> String {
        format!("{}process/", self.folder)
    }

    fn decode(&self, kv: &KeyValue) -> Result<(Membership, Option<u64>), ConfigurationError> {
        stored::decode(kv.value(), self.cluster, || format!("{} in etcd at {}", self.key(), self.endpoints))
    }

    /// Converts the key's value in an answer into the membership and its revision.
    fn found(&self, kv: Option<&KeyValue>, revision: i64) -> Result<Snapshot, ConfigurationError> {
        Ok(match kv {
            Some(kv) => {
                let (membership, _) = self.decode(kv)?;
                Snapshot { revision: kv.mod_revision(), modified: kv.mod_revision(), membership: membership.into() }
            }
            None => Snapshot { revision, modified: 0, membership: Arc::default() },
        })
    }

    fn seen(&self) -> Snapshot {
        lock(&self.seen).clone()
    }

    fn learn(&self, new: &Snapshot) -> Result<(), ConfigurationError> {
        let mut seen = lock(&self.seen);
        if new.revision > seen.revision {
            let (found, known) = (new.membership.generation(), seen.membership.generation());
            if found < known {
                return Err(self.lose(Lost::Generations(found, known)));
            }
            *seen = new.clone();
            self.generation.store(found, Ordering::Release);
        }
        Ok(())
    }

    async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &self,
        deadline: Instant,
        question: impl FnMut() -> F,
    ) -> Result<T, ConfigurationError> {
        ask(self.patience, deadline, question).await.map_err(|cause| self.blame(cause))
    }

    async fn get(
        &self,
        key: &str,
        options: GetOptions,
        deadline: Instant,
    ) -> Result<(GetResponse, i64), ConfigurationError> {
        let known = lock(&self.seen).revision;
        let got = self.ask(deadline, || {
            let (mut kv, options) = (self.client.kv_client(), options.clone());
            async move { kv.get(key, Some(options)).await }
        });
        let got = got.await?;
        let found = revision(got.header());
        // Etcd's servers agree on every answer. So no answer is older than what was known when it
        // was asked for.
        if found < known { Err(self.lose(Lost::Revisions(found, known))) } else { Ok((got, found)) }
    }

    /// Returns the present membership, if it is not `seen` any more.
    async fn newest(&self, seen: Snapshot, deadline: Instant) -> Result<Snapshot, ConfigurationError> {
        let newer = GetOptions::new().with_min_mod_revision(seen.revision + 1);
        let (got, revision) = self.get(&self.key(), newer, deadline).await?;
        if got.kvs().is_empty() && (got.count() > 0) == (seen.modified > 0) {
            return Ok(seen);
        }
        let new = self.found(got.kvs().first(), revision)?;
        self.learn(&new)?;
        Ok(new)
    }

    /// Replaces the membership that was seen by another one. If etcd has a different one by now,
    /// returns that.
    async fn replace(
        &self,
        was: &Snapshot,
        membership: Membership,
        deadline: Instant,
    ) -> Result<Option<Snapshot>, ConfigurationError> {
        let change = self.process.wrapping_add(self.changes.fetch_add(1, Ordering::Relaxed));
        let text = stored::encode(self.cluster, Some(change), membership.clone());
        let text = text.map_err(|error| self.blame(EtcdFault::System(io::Error::other(error))))?;
        let mut asked = 0;
        let answer = self.ask(deadline, || {
            asked += 1;
            let (mut kv, key) = (self.client.kv_client(), self.key());
            let transaction = Txn::new()
                .when([Compare::mod_revision(key.clone(), CompareOp::Equal, was.modified)])
                .and_then([TxnOp::put(key.clone(), text.clone(), None)])
                .or_else([TxnOp::get(key, None)]);
            async move { kv.txn(transaction).await }
        });
        let answer = answer.await?;
        let found = revision(answer.header());
        let membership = Arc::new(membership);
        let done = |revision| self.learn(&Snapshot { revision, modified: revision, membership }).map(|()| None);
        if answer.succeeded() {
            return done(found);
        }
        let there = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(got) => got.kvs().first().cloned(),
            _ => None,
        });
        // The answer to an earlier attempt may have been lost.
        if asked > 1
            && let Some(there) = &there
            && let Some(made) = self.made(change, was.modified, there.clone(), deadline).await?
        {
            return done(made);
        }
        if found < was.revision {
            return Err(self.lose(Lost::Revisions(found, was.revision)));
        }
        let by = self.found(there.as_ref(), found)?;
        self.learn(&by)?;
        Ok(Some(by))
    }

    /// Returns the revision at which this change was made, if it was made. In that case its value
    /// followed the value that it replaced.
    async fn made(
        &self,
        change: u64,
        modified: i64,
        mut later: KeyValue,
        deadline: Instant,
    ) -> Result<Option<i64>, ConfigurationError> {
        loop {
            if self.decode(&later)?.1 == Some(change) {
                return Ok(Some(later.mod_revision()));
            }
            let before = GetOptions::new().with_revision(later.mod_revision() - 1);
            let (got, _) = self.get(&self.key(), before, deadline).await.map_err(|error| match error {
                ConfigurationError::Etcd { cause: EtcdFault::Refused(_), .. } => self.blame(EtcdFault::Unsettled),
                error => error,
            })?;
            match got.kvs().first() {
                Some(before) if before.mod_revision() != modified => later = before.clone(),
                _ => return Ok(None),
            }
        }
    }

    /// Reads all keys anew.
    async fn look_at_everything(&self, deadline: Instant) -> Result<i64, ConfigurationError> {
        let (got, revision) = self.get(&self.folder, GetOptions::new().with_prefix(), deadline).await?;
        let seen = self.found(got.kvs().iter().find(|kv| kv.key() == self.key().as_bytes()), revision)?;
        let mut view = lock(&self.view);
        view.alive = got.kvs().iter().filter_map(|kv| self.process_of(kv)).collect();
        self.show(&mut view, Some(seen))?;
        Ok(revision)
    }

    /// Makes the view show what was seen together with it, and notes it for callers.
    fn show(&self, view: &mut View, seen: Option<Snapshot>) -> Result<(), ConfigurationError> {
        if let Some(seen) = seen {
            self.learn(&seen)?;
            view.membership = seen.membership;
        }
        let View { membership, alive, missing, .. } = view;
        let before = std::mem::take(missing);
        let others = membership.processes().filter_map(|(client, process)| Some((client, process?)));
        for (client, process) in others.filter(|(_, process)| *process != self.process && !alive.contains(process)) {
            let since = || before.get(&process).map_or_else(Instant::now, |(since, _)| *since);
            missing.entry(process).or_insert_with(|| (since(), Vec::new())).1.push(client);
        }
        Ok(())
    }

    /// Returns the process whose sign of life this key is.
    fn process_of(&self, kv: &KeyValue) -> Option<u64> {
        let name = kv.key().strip_prefix(self.signs().as_bytes())?;
        u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
    }

    /// Puts this process's sign of life. Returns the lease that the key goes with.
    async fn sign(&self, deadline: Instant) -> Result<i64, EtcdFault> {
        let seconds = self.ttl.as_secs_f64().ceil() as i64;
        let (leases, kv) = (self.client.lease_client(), self.client.kv_client());
        let granted = ask(self.patience, deadline, || {
            let mut leases = leases.clone();
            async move { leases.grant(seconds, None).await }
        });
        let lease = granted.await?.id();
        let key = format!("{}{:016x}", self.signs(), self.process);
        let put = ask(self.patience, deadline, || {
            let (mut kv, key) = (kv.clone(), key.clone());
            async move { kv.put(key, "", Some(PutOptions::new().with_lease(lease))).await }
        });
        put.await?;
        self.lease.store(lease, Ordering::Relaxed);
        Ok(lease)
    }
}

/// Background work, which goes on as long as there is an [`Etcd`].
impl Core {
    /// Keeps this process's sign of life alive, and puts it again when it is lost.
    async fn keep_signed(self: Arc<Self>, mut lease: i64) {
        loop {
            sleep(self.ttl / 3).await;
            let (mut leases, mut share) = (self.client.lease_client(), self.ttl / FIRST_SHARE);
            loop {
                match timeout(share, leases.keep_alive(lease)).await {
                    Ok(Ok(_)) => break,
                    Ok(Err(Error::LeaseKeepAliveError(_))) => {
                        tracing::warn!(
                            "etcd had not heard of this process for too long: it was taken for one that has ended"
                        );
                        match self.sign(Instant::now() + self.patience).await {
                            Ok(new) => lease = new,
                            Err(error) => tracing::warn!(%error, "the sign of life of this process is missing"),
                        }
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a sign of life did not get through"),
                    Err(_) => {
                        share = self.patience.min(share.saturating_mul(2));
                        tracing::debug!("a sign of life did not get through");
                    }
                }
                sleep(self.ttl / 10).await;
            }
        }
    }

    async fn keep_watching(self: Arc<Self>) {
        loop {
            if let Err(error) = self.watch().await {
                tracing::debug!(%error, "the watch has broken, and is begun again");
            }
            sleep(PAUSE).await;
        }
    }

    /// Watches all keys until the watch breaks.
    async fn watch(&self) -> Result<(), ConfigurationError> {
        let revision = self.look_at_everything(Instant::now() + self.patience).await?;
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let broken = |error| self.blame(EtcdFault::Refused(told(&error)));
        let mut watches = self.client.watch_client();
        let mut watch = watches.watch(self.folder.as_str(), Some(options)).await.map_err(broken)?;
        while let Some(news) = watch.message().await.map_err(broken)? {
            if news.canceled() {
                return Err(self.blame(EtcdFault::Refused(news.cancel_reason().to_owned())));
            }
            let mut view = lock(&self.view);
            let mut last = None;
            for event in news.events() {
                let Some(kv) = event.kv() else { continue };
                let put = event.event_type() == EventType::Put;
                if kv.key() == self.key().as_bytes() {
                    last = Some(self.found(put.then_some(kv), kv.mod_revision())?);
                } else if let Some(process) = self.process_of(kv) {
                    if put {
                        view.alive.insert(process);
                    } else {
                        view.alive.remove(&process);
                    }
                }
            }
            self.show(&mut view, last)?;
        }
        Ok(())
    }

    async fn until_it_answers(self: Arc<Self>) {
        loop {
            sleep(PAUSE).await;
            let answer = ask(self.patience, Instant::now() + self.patience, || {
                let (mut kv, key) = (self.client.kv_client(), self.key());
                async move { kv.get(key, Some(GetOptions::new().with_count_only())).await }
            });
            // Any answer will do, even a refusal.
            if !matches!(answer.await, Err(EtcdFault::Away { .. })) {
                tracing::warn!(endpoints = self.endpoints, "etcd answers again");
                *lock(&self.away) = None;
                return;
            }
        }
    }
}

/// Repeats a request until there is an answer, or until the deadline. The request may be carried
/// out more than once.
async fn ask<T, F: Future<Output = Result<T, Error>>>(
    patience: Duration,
    deadline: Instant,
    mut question: impl FnMut() -> F,
) -> Result<T, EtcdFault> {
    let (mut why, mut share) = (None, patience / FIRST_SHARE);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).min(share);
        if left.is_zero() {
            let why = why.unwrap_or_else(|| SILENT.to_owned());
            return Err(EtcdFault::Away { patience, why });
        }
        match timeout(left, question()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if is_passing(&error) => why = Some(told(&error)),
            Ok(Err(Error::GRpcStatus(status))) => return Err(EtcdFault::Refused(status.message().to_owned())),
            Ok(Err(error)) => return Err(EtcdFault::Unusable(told(&error))),
            Err(_) => share = share.saturating_mul(2),
        }
        sleep(ASK_AGAIN.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

const SILENT: &str = "it is silent";

impl EtcdFault {
    fn silent(patience: Duration) -> EtcdFault {
        EtcdFault::Away { patience, why: SILENT.to_owned() }
    }
}

/// Whether an error may soon pass by itself.
fn is_passing(error: &Error) -> bool {
    // The numbers are those of gRPC.
    const CANCELLED: i32 = 1;
    const UNKNOWN: i32 = 2;
    const DEADLINE_EXCEEDED: i32 = 4;
    const ABORTED: i32 = 10;
    const INTERNAL: i32 = 13;
    const UNAVAILABLE: i32 = 14;
    match error {
        Error::GRpcStatus(status) => {
            matches!(status.code() as i32, CANCELLED | UNKNOWN | DEADLINE_EXCEEDED | ABORTED | INTERNAL | UNAVAILABLE)
        }
        // These errors come from the description of a connection, and not from connecting.
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) | Error::TransportError(_) => {
            false
        }
        _ => true,
    }
}

/// Returns the text of an error and of its causes.
fn told(error: &Error) -> String {
    let (mut text, mut source) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        error => (error.to_string(), None),
    };
    while let Some(error) = source {
        let behind = error.to_string();
        if !text.contains(&behind) {
            text = format!("{text}: {behind}");
        }
        source = error.source();
    }
    text
}

fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

/// Returns the options for connecting, with the contents of the files that are named.
fn connecting(options: &EtcdOptions) -> Result<ConnectOptions, EtcdFault> {
    let mut connecting = ConnectOptions::new()
        .with_connect_timeout(options.patience)
        .with_keep_alive(PING_EVERY, options.patience)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(tls) = &options.tls {
        let ca = fs::read(&tls.ca).map_err(|cause| EtcdFault::File { path: tls.ca.clone(), cause })?;
        let mut with = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((certificate, key)) = &tls.identity {
            let shown = fs::read(certificate);
            let shown = shown.map_err(|cause| EtcdFault::File { path: certificate.clone(), cause })?;
            with = with.identity(Identity::from_pem(shown, read_private(key)?));
        }
        connecting = connecting.with_tls(with);
    }
    if let Some(user) = &options.user {
        connecting = connecting.with_user(&user.name, &user.password);
    }
    Ok(connecting)
}

/// A thread that runs async work until it is dropped.
struct Engine {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    fn start() -> io::Result<Engine> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("remora-etcd".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped); // if it is dropped, that counts as well
            // Do not wait for the lookup of a name.
            runtime.shutdown_background();
        })?;
        Ok(Engine { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Makes the thread do work that ends at a deadline. Returns `None` if it does not end in time.
    fn wait<T: Send + 'static>(&self, deadline: Instant, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (tell, told) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = tell.send(work.await); // the caller may have stopped waiting
        });
        told.recv_timeout(deadline.saturating_duration_since(Instant::now()) + GRACE).ok()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was reported there
        }
    }
}

/// Returns a random number. It comes from the standard library, which seeds its hash tables with
/// random numbers.
fn random(salt: u64) -> u64 {
    RandomState::new().hash_one(salt)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
