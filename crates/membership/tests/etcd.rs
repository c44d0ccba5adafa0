//! Tests of the configuration in etcd, with an etcd server for each test, real processes, and
//! failures between them.

mod etcd_support;
#[macro_use]
mod places;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, GetOptions, Permission, PermissionType};
use etcd_support::{Issued, Server, Wire, options, with_client, write};
use places::{PATIENCE, until};
use remora_fabric::{NodeId, NodeSet};
use remora_membership::etcd::{Etcd, EtcdFault, EtcdOptions, EtcdTls, EtcdUser};
use remora_membership::{Configuration, ConfigurationError, Fenced, Membership, Place, Standing};
use remora_txn::recovery::Verdicts;

const CLUSTER: u64 = 7;
const KEY: &str = "/remora/0000000000000007/configuration";

impl places::Place for Server {
    fn new() -> Server {
        Server::start()
    }

    fn open(&self) -> Arc<dyn Configuration> {
        open(&options(self)).unwrap()
    }
}

conformance!(Server);

fn open(options: &EtcdOptions) -> Result<Arc<dyn Configuration>, ConfigurationError> {
    Ok(Arc::new(Etcd::open(options, CLUSTER)?))
}

/// Returns the reason why etcd could not be used.
fn fault<T>(result: Result<T, ConfigurationError>) -> EtcdFault {
    match result.map(|_| ()) {
        Err(ConfigurationError::Etcd { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// Looks at the newest membership, after a refresh.
fn newest<T>(here: &Arc<dyn Configuration>, look: impl FnMut(&Membership) -> T) -> T {
    here.refresh().unwrap();
    here.look(look).unwrap()
}

fn join(here: &Arc<dyn Configuration>, client: u32) {
    here.change(|membership| membership.join(client, 1, 1, here.process())).unwrap().unwrap();
}

/// No process asks for anything. The watch alone tells of changes.
#[test]
fn a_watch_tells_of_changes_within_a_second() {
    let server = Server::start();
    let (here, there) = (open(&options(&server)).unwrap(), open(&options(&server)).unwrap());
    for client in 1..20 {
        join(&there, client);
        until("the generation", Duration::from_secs(1), || here.generation() == u64::from(client));
    }
}

#[test]
fn what_is_something_else_is_refused_untouched() {
    let server = Server::start();
    let put = |text: &str| {
        with_client(&server, async |mut client: Client| {
            client.put(KEY, text, None).await.unwrap();
        });
    };
    let all = || {
        with_client(&server, async |mut client: Client| {
            let got = client.get("/remora/", Some(GetOptions::new().with_prefix())).await.unwrap();
            got.kvs().iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec())).collect::<Vec<_>>()
        })
    };
    let refused = |text: &str| {
        put(text);
        let error = open(&options(&server)).map(|_| ()).unwrap_err();
        assert_eq!(all(), [(KEY.into(), text.into())], "nothing is put there either");
        error
    };
    for text in
        ["", "{", "hello", "{\"kind\":\"recipe\",\"format\":1}", "{\"kind\":\"remora configuration\",\"format\":4}"]
    {
        assert!(matches!(refused(text), ConfigurationError::Foreign(_)), "{text}");
    }
    // The version before this one, and a newer one.
    for version in [3, 9] {
        let other = refused(&format!("{{\"kind\":\"remora configuration\",\"format\":{version},\"what\":[]}}"));
        let names = matches!(other, ConfigurationError::Format { found, known: 4, .. } if found == version);
        assert!(names, "{other:?}");
        let told = other.to_string();
        for part in [KEY, &format!("format {version};"), "format 4:"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    let others = "{\"kind\":\"remora configuration\",\"format\":4,\"cluster\":8,\
                  \"membership\":{\"generation\":0,\"epoch\":1,\"lost\":0,\"leaving\":0,\"copied\":[],\"change\":null,\"members\":{}}}";
    assert!(matches!(refused(others), ConfigurationError::OtherCluster(_)));
    // The value comes later, and is judged likewise.
    put(&others.replace("8", "7"));
    let here = open(&options(&server)).unwrap();
    join(&here, 1);
    put(others);
    let refused = |error| assert!(matches!(error, ConfigurationError::OtherCluster(_)), "{error}");
    refused(here.refresh().unwrap_err());
    refused(here.change(|membership| membership.join(2, 1, 1, None)).unwrap_err());
    assert!(all().contains(&(KEY.into(), others.into())));
}

#[test]
fn clusters_and_folders_are_apart() {
    let server = Server::start();
    let here = open(&options(&server)).unwrap();
    let elsewhere = options(&server).prefix("/team/remora".to_owned());
    let another = Etcd::open(&options(&server), CLUSTER + 1).unwrap();
    let another: &dyn Configuration = &another;
    let apart = open(&elsewhere).unwrap();
    join(&here, 1);
    for other in [another, &*apart] {
        assert_eq!(other.look(|membership| membership.clients().count()).unwrap(), 0);
    }
    assert!(format!("{apart:?}").contains("/team/remora/0000000000000007/"));
}

/// A change is made, its answer is lost, and other processes continue from there. The change is
/// neither made twice, nor forgotten.
#[test]
fn a_change_whose_answer_is_lost_is_made_once() {
    let server = Server::start();
    let wire = Wire::to(server.address());
    let patient = |address| EtcdOptions::of(vec![address]).patience(PATIENCE);
    let (here, there) = (open(&patient(wire.address())).unwrap(), open(&options(&server)).unwrap());
    for others in [0, 1, 5] {
        let before = newest(&there, Membership::generation);
        join(&here, 1);
        wire.cut();
        let left = thread::scope(|scope| {
            let leaving = scope.spawn(|| here.change(|membership| membership.leave(1)).unwrap());
            until("the change", PATIENCE, || newest(&there, |all| all.standing(1)).is_none());
            for _ in 0..others {
                // This change has the effect by which the lost one might be mistaken.
                there.change(|membership| membership.join(1, 1, 1, None)).unwrap().unwrap();
                there.change(|membership| membership.leave(1)).unwrap().unwrap();
            }
            wire.mend();
            leaving.join().unwrap()
        });
        assert_eq!(left, Ok(()), "who leaves twice is told that it is dead");
        assert_eq!(newest(&here, Membership::generation), before + 2 + 2 * others);
    }
}

/// The history that tells whether the change was made may be gone. The error says so then.
#[test]
fn an_answer_that_is_lost_for_good_is_not_made_up() {
    let server = Server::start();
    let wire = Wire::to(server.address());
    let patient = EtcdOptions::of(vec![wire.address()]).patience(PATIENCE);
    let (here, there) = (open(&patient).unwrap(), open(&options(&server)).unwrap());
    join(&here, 1);
    wire.cut();
    let left = thread::scope(|scope| {
        let leaving = scope.spawn(|| here.change(|membership| membership.leave(1)));
        until("the change", PATIENCE, || newest(&there, |all| all.standing(1)).is_none());
        join(&there, 2);
        join(&there, 3);
        compact(&server);
        wire.mend();
        leaving.join().unwrap()
    });
    assert!(matches!(fault(left), EtcdFault::Unsettled));
}

fn compact(server: &Server) {
    with_client(server, async |mut client: Client| {
        let revision = client.get(KEY, None).await.unwrap().header().unwrap().revision();
        client.compact(revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    });
}

#[test]
fn a_server_that_is_killed_and_started_again_goes_on() {
    let mut server = Server::start();
    let (here, there) = (open(&options(&server)).unwrap(), open(&options(&server)).unwrap());
    join(&here, 1);
    for client in 2..5 {
        server.kill();
        server.start_again();
        compact(&server);
        join(&there, client);
        until("the generation", PATIENCE, || here.generation() == u64::from(client));
        assert!(here.orphans().is_empty());
    }
    // Signs of life are kept again, too.
    thread::sleep(2 * options(&server).ttl);
    assert!(here.orphans().is_empty() && !here.has_ended(there.process().unwrap()));
    drop(there);
    until("orphans", PATIENCE, || here.orphans() == [2, 3, 4]);
}

#[test]
fn any_majority_of_servers_will_do() {
    let mut servers = Server::start_cluster(3, &[]);
    let endpoints: Vec<String> = servers.iter().map(Server::address).collect();
    let of_all = options(&servers[0]).endpoints(endpoints);
    let (here, there) = (open(&of_all).unwrap(), open(&of_all).unwrap());
    let mut clients = 0;
    // One server leads, and either configuration may watch or ask any of them.
    for dead in &mut servers {
        dead.kill();
        for _ in 0..10 {
            clients += 1;
            join(&here, clients);
            assert_eq!(newest(&there, |membership| membership.standing(clients)), Some(Standing::Alive));
        }
        until("the generation", PATIENCE, || there.generation() == u64::from(clients));
        dead.start_again();
    }
    assert!(there.orphans().is_empty());
    drop(here);
    until("orphans", PATIENCE, || there.orphans().len() == clients as usize);
}

/// A server accepts requests and never answers. Then another one is asked soon enough.
#[test]
fn a_server_that_is_silent_is_not_waited_for() {
    const CHANGES: u32 = 10;
    let servers = Server::start_cluster(3, &[]);
    let endpoints: Vec<String> = servers.iter().map(Server::address).collect();
    let here = open(&options(&servers[0]).endpoints(endpoints).patience(Duration::from_secs(4))).unwrap();
    // Count the changes that failed after a wait, and the clients.
    let (mut failures, mut clients) = (0, 0);
    for silent in &servers {
        silent.signal("-STOP");
        for _ in 0..CHANGES {
            clients += 1;
            until("the change", PATIENCE, || {
                let began = Instant::now();
                let joined = here.change(|all| all.join(clients, 1, 1, None));
                failures += u32::from(joined.is_err() && began.elapsed() > Duration::from_secs(1));
                joined.is_ok()
            });
        }
        silent.signal("-CONT");
    }
    assert!(failures <= CHANGES / 2, "{failures} of {clients}");
    assert_eq!(newest(&here, |all| all.clients().count()), clients as usize);
}

/// Repeats a change of a client that has joined until it works.
fn works_again(here: &Arc<dyn Configuration>, client: u32) {
    until("that it works again", Duration::from_secs(10), || {
        here.change(|membership| membership.renew(client)).is_ok()
    });
    assert_eq!(here.look(|membership| membership.standing(client)).unwrap(), Some(Standing::Alive));
}

#[test]
fn while_it_is_away_calls_say_so_and_nobody_waits() {
    let mut server = Server::start();
    let patience = Duration::from_millis(1500);
    let here = open(&options(&server).patience(patience)).unwrap();
    join(&here, 1);
    let away = || {
        let began = Instant::now();
        let error = here.change(|membership| membership.renew(1)).unwrap_err();
        assert!(error.to_string().contains(&server.address()), "{error}");
        assert!(matches!(fault::<()>(Err(error)), EtcdFault::Away { .. }));
        assert!(began.elapsed() < patience + Duration::from_secs(5), "a loaded machine has a little more time");
        let began = Instant::now();
        for _ in 0..100 {
            assert!(matches!(fault(here.refresh()), EtcdFault::Away { .. }));
            assert!(matches!(fault(here.change(|all| all.renew(1))), EtcdFault::Away { .. }));
            assert_eq!(here.look(|all| all.standing(1)).unwrap(), Some(Standing::Alive), "what was seen last");
        }
        assert!(began.elapsed() < patience, "nobody waits for what is known to be away");
        assert_eq!((here.generation(), here.orphans()), (1, vec![]), "what was seen last");
    };
    // The server is there, and says nothing.
    server.signal("-STOP");
    away();
    server.signal("-CONT");
    works_again(&here, 1);
    // The server is not there.
    server.kill();
    let error = here.refresh().unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
    server.start_again();
    works_again(&here, 1);
    // A process that opens the configuration then gets the error.
    server.kill();
    let late = open(&options(&server).patience(patience));
    assert!(matches!(fault(late), EtcdFault::Away { .. }));
}

/// A process was taken for ended, and comes back.
#[test]
fn a_process_that_was_not_heard_of_for_too_long_signs_again() {
    let server = Server::start();
    let (here, there) = (open(&options(&server)).unwrap(), open(&options(&server)).unwrap());
    join(&here, 1);
    join(&there, 2);
    let leases = || {
        with_client(&server, async |mut client: Client| {
            let leases = client.leases().await.unwrap();
            leases.leases().iter().map(|lease| lease.id()).collect::<Vec<_>>()
        })
    };
    // Revoke the leases, as if they had expired.
    with_client(&server, async |mut client: Client| {
        for lease in client.leases().await.unwrap().leases() {
            client.lease_revoke(lease.id()).await.unwrap();
        }
    });
    until("new leases", PATIENCE, || {
        assert!(!here.orphans().contains(&1), "nobody takes itself for one that has ended");
        leases().len() == 2
    });
    until("that nobody is an orphan", PATIENCE, || here.orphans().is_empty() && there.orphans().is_empty());
    // The process also keeps its new sign alive.
    thread::sleep(2 * options(&server).ttl);
    assert!(leases().len() == 2 && here.orphans().is_empty() && !here.has_ended(there.process().unwrap()));
    drop(there);
    until("orphans", PATIENCE, || here.orphans() == [2]);
}

/// A process that ends in good order is known to have ended at once, before its lease expires.
#[test]
fn a_process_that_goes_is_known_at_once() {
    let server = Server::start();
    let long = options(&server).ttl(100 * PATIENCE);
    let (here, there) = (open(&long).unwrap(), open(&long).unwrap());
    join(&there, 1);
    let process = there.process().unwrap();
    drop(there);
    until("its end", PATIENCE, || here.has_ended(process));
    assert_eq!(here.look(|membership| membership.standing(1)).unwrap(), Some(Standing::Alive));
}

/// If other processes always come first, a change gives up after a while.
#[test]
fn who_is_always_overtaken_gives_up() {
    let server = Server::start();
    let patience = Duration::from_secs(1);
    let (here, there) = (open(&options(&server).patience(patience)).unwrap(), open(&options(&server)).unwrap());
    let mut times = 0;
    let overtaken = here.update(&mut |membership| {
        times += 1;
        there.change(|membership| membership.join(times, 1, 1, None)).unwrap().unwrap();
        membership.join(1_000_000, 1, 1, None).unwrap();
    });
    assert!(matches!(fault(overtaken), EtcdFault::Overtaken(_)) && times > 1);
    let clients: Vec<u32> = there.look(|membership| membership.clients().map(|(client, _)| client).collect()).unwrap();
    assert_eq!(clients, (1..=times).collect::<Vec<_>>(), "others were faster, and nothing else has happened");
}

#[test]
fn a_store_that_has_lost_changes_is_not_believed() {
    let mut server = Server::start();
    let here = open(&options(&server)).unwrap();
    (1..5).for_each(|client| join(&here, client));
    server.kill();
    let new = Server::start();
    with_client(&new, async |mut client: Client| {
        // The server remembers what was agreed on when it starts again.
        for _ in 0..3 {
            client.put("something", "else", None).await.unwrap();
        }
    });
    server.take_the_data_of(new);
    server.start_again();
    until("that it says so", PATIENCE, || here.look(|_| ()).is_err());
    assert!(matches!(fault(here.look(|_| ())), EtcdFault::WentBack { .. }));
    assert!(matches!(fault(here.change(|all| all.join(9, 1, 1, None))), EtcdFault::WentBack { .. }));
    // A process that opens the configuration anew may use it.
    let later = open(&options(&server)).unwrap();
    assert_eq!(later.look(|membership| membership.clients().count()).unwrap(), 0);
}

/// The error also stays if etcd has a higher revision by the next question, because that is of
/// another history.
#[test]
fn a_configuration_that_begins_again_is_not_believed() {
    let server = Server::start();
    let (here, there) = (open(&options(&server)).unwrap(), open(&options(&server)).unwrap());
    (1..5).for_each(|client| join(&here, client));
    // A process that has not seen the lost data has nothing to doubt.
    until("all that there is", PATIENCE, || there.generation() == here.generation());
    with_client(&server, async |mut client: Client| {
        client.delete(KEY, None).await.unwrap();
    });
    let later = open(&options(&server)).unwrap();
    join(&later, 1);
    for known in [&here, &there] {
        until("that it says so", PATIENCE, || known.look(|_| ()).is_err());
        assert!(matches!(fault(known.look(|_| ())), EtcdFault::Lost { known: 4, .. }));
    }
    (2..9).for_each(|client| join(&later, client));
    assert!(matches!(fault(here.change(|all| all.renew(1))), EtcdFault::Lost { known: 4, .. }));
}

/// Returns which of the servers leads.
fn leader(servers: &[Server]) -> usize {
    let ids = servers.iter().map(|server| {
        with_client(server, async |mut client: Client| {
            let status = client.status().await.unwrap();
            (status.header().unwrap().member_id(), status.leader())
        })
    });
    ids.collect::<Vec<_>>().iter().position(|(member, leader)| member == leader).unwrap()
}

/// A client reaches one server only. That server leads until it is cut off, and believes that it
/// still leads when it comes back. Alone, it answers only what all servers have agreed on, and
/// nothing can be changed there.
#[test]
fn with_a_minority_nothing_is_changed() {
    let servers = Server::start_cluster(3, &[]);
    let alone = leader(&servers);
    let (minority, majority): (Vec<_>, Vec<_>) = (0..3).partition(|server| *server == alone);
    let at = |members: &[usize], patience| {
        options(&servers[0])
            .endpoints(members.iter().map(|member| servers[*member].address()).collect())
            .patience(patience)
    };
    let here = open(&at(&minority, Duration::from_secs(1))).unwrap();
    let there = open(&at(&majority, PATIENCE)).unwrap();
    join(&here, 1);
    there.change(|all| all.join_controller(Ok(2), 1, there.process())).unwrap();
    let node = NodeSet::default().with(NodeId(1));
    until("the generation", PATIENCE, || here.generation() == 2);

    let whole = || there.look(Membership::clone).unwrap();
    let mut agreed = vec![whole()];
    servers[alone].signal("-STOP");
    there.change(|all| all.lose(node, 2)).unwrap().unwrap();
    agreed.push(whole());
    let conducting = there.look(|all| all.conducting(2)).unwrap().unwrap();
    let begins = |all: &mut Membership| {
        all.decided(2, &[(1, Verdicts::default())])?;
        all.begin_epoch(2, &conducting, NodeSet::default())
    };
    assert_eq!(there.change(begins).unwrap(), Ok(true));
    agreed.push(whole());
    majority.iter().for_each(|server| servers[*server].signal("-STOP"));
    servers[alone].signal("-CONT");
    for _ in 0..3 {
        assert!(matches!(fault(here.change(|all| all.renew(1))), EtcdFault::Away { .. }));
        assert!(matches!(fault(here.refresh()), EtcdFault::Away { .. }));
        // Some of it may have been on its way to the server.
        assert!(agreed.contains(&here.look(Membership::clone).unwrap()), "nothing else");
        assert!(here.orphans().is_empty(), "who may as well be cut off itself judges nobody");
    }
    assert!(matches!(fault(open(&at(&minority, Duration::from_secs(1)))), EtcdFault::Away { .. }));

    majority.iter().for_each(|server| servers[*server].signal("-CONT"));
    until("the epoch of the majority", PATIENCE, || here.look(Membership::epoch).unwrap() == 2);
    until("an answer", PATIENCE, || here.refresh().is_ok());
    assert_eq!(here.change(|all| all.renew(1)).unwrap(), Err(Fenced(1)), "it has ended with its epoch");
}

/// All controllers find at once that nodes are lost. The conductor may find that another controller
/// has taken it for dead.
#[test]
fn controllers_race_and_each_epoch_begins_once() {
    const CONTROLLERS: u32 = 3;
    const EPOCHS: u64 = 12;
    let server = Server::start();
    let begun = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..CONTROLLERS {
            let (here, begun) = (open(&options(&server)).unwrap(), &begun);
            scope.spawn(move || {
                let mut controller = number + 1;
                for times in 0.. {
                    if here.look(Membership::epoch).unwrap() > EPOCHS {
                        return;
                    }
                    if here.look(|all| all.standing(controller)).unwrap() != Some(Standing::Alive) {
                        // It joins as a new incarnation, as soon as it may.
                        controller += CONTROLLERS;
                        here.change(|all| all.join_controller(Ok(controller), 1, here.process())).unwrap();
                        continue;
                    }
                    let node = NodeId(u16::try_from(here.look(Membership::epoch).unwrap()).unwrap());
                    let _ = here.change(|all| all.lose(NodeSet::default().with(node), controller)).unwrap();
                    if times % 5 == 0 {
                        // This controller takes the conductor for dead.
                        let other = here.look(|all| (1..1000).find(|other| all.conducting(*other).is_some())).unwrap();
                        let _ = other.map(|other| here.change(|all| all.suspect(other, controller)).unwrap());
                    }
                    let Some(conducting) = here.look(|all| all.conducting(controller)).unwrap() else { continue };
                    let verdicts: Vec<_> =
                        conducting.clients.iter().map(|client| (*client, Verdicts::default())).collect();
                    let begins = |all: &mut Membership| {
                        all.decided(controller, &verdicts)?;
                        all.begin_epoch(controller, &conducting, NodeSet::default())
                    };
                    if here.change(begins).unwrap() == Ok(true) {
                        begun.lock().unwrap().push(conducting.epoch);
                    }
                }
            });
        }
    });
    let (mut begun, here) = (begun.into_inner().unwrap(), open(&options(&server)).unwrap());
    begun.sort_unstable();
    let epoch = here.look(Membership::epoch).unwrap();
    assert_eq!(begun, (2..=epoch).collect::<Vec<_>>(), "each of them once");
    assert_eq!(u64::from(here.look(|all| all.lost().count()).unwrap()), epoch - 1, "each without one node more");
}

/// Etcd stands still for longer than any sign of life lasts, and then goes on. All signs are gone,
/// and come again.
#[test]
fn nobody_has_ended_because_etcd_stood_still() {
    let server = Server::start();
    let (here, there) = (open(&options(&server)).unwrap(), open(&options(&server)).unwrap());
    join(&here, 1);
    join(&there, 2);
    until("the generation", PATIENCE, || here.generation() == 2);
    server.signal("-STOP");
    thread::sleep(2 * options(&server).ttl);
    server.signal("-CONT");
    let began = Instant::now();
    while began.elapsed() < 2 * options(&server).ttl {
        assert_eq!((here.orphans(), there.orphans()), (vec![], vec![]));
        thread::sleep(Duration::from_millis(1));
    }
    drop(there);
    until("orphans", PATIENCE, || here.orphans() == [2]);
}

/// A caller that hands its changes to the helper waits for none of them, and they are made in
/// order.
#[test]
fn a_helper_waits_in_place_of_others() {
    const JOBS: u32 = 20;
    let server = Server::start();
    let here = open(&options(&server)).unwrap();
    let (tell, told) = channel();
    server.signal("-STOP");
    let began = Instant::now();
    for client in 1..=JOBS {
        let tell = tell.clone();
        let job = move |configuration: &(dyn Configuration + 'static)| {
            configuration.change(|all| all.join(client, 1, 1, None)).unwrap().unwrap();
            tell.send(client).unwrap();
        };
        here.helper().unwrap().hand_over(Box::new(job));
        assert_eq!(here.look(|all| all.clients().count()).unwrap(), 0);
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(told.try_recv().is_err());
    server.signal("-CONT");
    drop((tell, here));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), (1..=JOBS).collect::<Vec<_>>(), "what was begun is ended");
}

#[test]
fn users_and_their_passwords() {
    let mut server = Server::start();
    with_client(&server, async |mut client: Client| {
        client.role_add("root").await.unwrap();
        client.role_add("remora").await.unwrap();
        let folder = Permission::new(PermissionType::Readwrite, "/remora/").with_prefix();
        client.role_grant_permission("remora", folder).await.unwrap();
        for (user, role) in [("root", Some("root")), ("remora", Some("remora")), ("guest", None)] {
            client.user_add(user, "secret of many", None).await.unwrap();
            if let Some(role) = role {
                client.user_grant_role(user, role).await.unwrap();
            }
        }
        client.auth_enable().await.unwrap();
    });
    let by = |name: &str, password: &str| {
        let user = EtcdUser { name: name.to_owned(), password: password.to_owned() };
        options(&server).user(user)
    };
    let good = by("remora", "secret of many");
    assert!(!format!("{good:?}").contains("secret"), "{good:?}");
    let refused = |by: &EtcdOptions| match fault(open(by)) {
        EtcdFault::Refused(words) => words,
        other => panic!("{other}"),
    };
    assert!(refused(&by("remora", "secret of few")).contains("authentication failed"));
    assert!(refused(&by("guest", "secret of many")).contains("permission denied"));
    assert!(refused(&options(&server)).contains("user name is empty"));
    let elsewhere = good.clone().prefix("/elsewhere".to_owned());
    assert!(refused(&elsewhere).contains("permission denied"));

    let (here, there) = (open(&good).unwrap(), open(&good).unwrap());
    assert!(!format!("{here:?}").contains("secret"), "{here:?}");
    join(&here, 1);
    // Etcd forgets the token by which it had proved who it is.
    server.kill();
    server.start_again();
    join(&here, 2);
    until("the generation", PATIENCE, || there.generation() == 2);
    drop(here);
    until("orphans", PATIENCE, || there.orphans() == [1, 2]);
}

#[test]
fn passwords_are_read_from_files_that_nobody_else_reads() {
    let path = std::env::temp_dir().join(format!("remora-password-{}", std::process::id()));
    write(&path, "secret\n");
    assert_eq!(EtcdUser::read("a", &path).unwrap(), EtcdUser { name: "a".to_owned(), password: "secret".to_owned() });
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(EtcdUser::read("a", &path), Err(EtcdFault::Exposed { mode: 0o640, .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(EtcdUser::read("a", &path), Err(EtcdFault::File { .. })));
}

fn tls(issued: &Issued) -> EtcdTls {
    let identity = Some((issued.file("client.pem"), issued.file("client.key")));
    EtcdTls { ca: issued.file("ca.pem"), identity }
}

#[test]
fn tls_on_both_sides() {
    let (issued, others) = (Issued::new("issued"), Issued::new("others"));
    let server = Server::start_with(&issued.arguments());
    let patience = Duration::from_millis(800);
    let with = |tls: Option<EtcdTls>| open(&options(&server).tls(tls));
    let hasty = |tls: Option<EtcdTls>| match fault(open(&options(&server).tls(tls).patience(patience))) {
        EtcdFault::Away { why, .. } => why,
        other => panic!("{other}"),
    };
    let (here, there) = (with(Some(tls(&issued))).unwrap(), with(Some(tls(&issued))).unwrap());
    join(&here, 1);
    until("the generation", PATIENCE, || there.generation() == 1);

    // Neither end trusts the other, or one shows no certificate, or does not use TLS.
    let why = hasty(Some(EtcdTls { ca: others.file("ca.pem"), ..tls(&issued) }));
    assert!(why.contains("certificate"), "{why}");
    hasty(Some(EtcdTls { identity: tls(&others).identity, ..tls(&issued) }));
    hasty(Some(EtcdTls { identity: None, ..tls(&issued) }));
    hasty(None);
    // These files cannot be used.
    let key = issued.file("client.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(fault(with(Some(tls(&issued)))), EtcdFault::Exposed { path, mode: 0o644 } if path == key));
    fs::remove_file(&key).unwrap();
    assert!(matches!(fault(with(Some(tls(&issued)))), EtcdFault::File { path, .. } if path == key));
    write(&key, "no key");
    assert!(matches!(fault(with(Some(tls(&issued)))), EtcdFault::Unusable(_)));
}

/// This program again, as a process with a client that rests.
struct Process(Child);

impl Process {
    fn start(server: &Server, client: u32) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_another_process_does", "--ignored", "--nocapture"])
            .env("REMORA_ETCD", server.address())
            .env("REMORA_CLIENT", client.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap().contains("resting")), "it says so");
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "is run as a process by the others"]
fn what_another_process_does() {
    let Ok(address) = std::env::var("REMORA_ETCD") else { return };
    let client = std::env::var("REMORA_CLIENT").unwrap().parse().unwrap();
    let ttl = Duration::from_secs(2);
    let here = open(&EtcdOptions::of(vec![address]).ttl(ttl)).unwrap();
    join(&here, client);
    println!("resting");
    thread::sleep(PATIENCE);
}

#[test]
fn clients_of_a_process_that_is_killed_are_orphans() {
    let server = Server::start();
    let here = open(&options(&server)).unwrap();
    let (mut one, _other) = (Process::start(&server, 1), Process::start(&server, 2));
    let process = |client| newest(&here, |all| all.processes().find(|(other, _)| *other == client)?.1).unwrap();
    let (killed, alive) = (process(1), process(2));
    thread::sleep(2 * options(&server).ttl);
    assert!(here.orphans().is_empty() && !here.has_ended(killed), "they live");
    one.0.kill().unwrap();
    until("orphans", PATIENCE, || here.orphans() == [1]);
    assert!(here.has_ended(killed) && !here.has_ended(alive));
    assert_eq!(here.change(|membership| membership.suspect(1, 2)).unwrap(), Ok(()));
    assert_eq!(here.change(|membership| membership.renew(1)).unwrap(), Err(Fenced(1)));
}

#[test]
fn places_have_names() {
    let place = |text: &str| text.parse::<Place>().unwrap();
    let Place::Etcd(named) = place("etcd://a:1,[::1]:2379") else { panic!("a place in etcd") };
    assert_eq!((named.endpoints.join(" ").as_str(), named.prefix.as_str()), ("a:1 [::1]:2379", "/remora"));
    assert_eq!(place("etcd://a:1/team/x/").to_string(), "etcd://a:1/team/x");
    assert_eq!(place("etcd://a:1/").to_string(), "etcd://a:1/remora");
    assert_eq!(place("/run/a:1"), Place::File("/run/a:1".into()));
    for wrong in ["etcd://", "etcd://a", "etcd://a:b", "etcd://a:1,", "etcd://:1", "etcd://u:p@a:1"] {
        assert!(wrong.parse::<Place>().is_err(), "{wrong}");
    }
    let server = Server::start();
    let opened = place(&format!("etcd://{}/x", server.address())).open(CLUSTER).unwrap();
    opened.change(|membership| membership.join(1, 1, 1, None)).unwrap().unwrap();
    assert!(format!("{opened:?}").contains("/x/0000000000000007/"));
}
