use remora_fabric::NodeId;

use super::*;

const LEASE: Nanos = 5_000_000;

fn alive(clients: &[u32]) -> Membership {
    let mut membership = Membership::default();
    for client in clients {
        membership.join(*client, 1, LEASE, None).unwrap();
        membership.renew(*client).unwrap();
    }
    membership
}

#[test]
fn who_suspects_first_recovers() {
    let mut all = alive(&[1, 2, 3]);
    all.suspect(1, 2).unwrap();
    all.suspect(1, 3).unwrap();
    assert_eq!(all.standing(1), Some(Standing::Suspected { by: 2 }));
    assert_eq!(all.renew(1), Err(Fenced(1)));
    assert_eq!(all.recovered(1, 3, Verdicts::default()), Err(Fenced(3)), "not its charge");
    assert_eq!(all.recovered(1, 2, Verdicts::default()), Ok(()));
    assert_eq!(all.forget(1, 2), Ok(()));
    assert_eq!(all.standing(1), Some(Standing::Forgotten));
}

#[test]
fn who_renews_while_it_is_judged_is_not_suspected() {
    let mut all = alive(&[1, 2]);
    all.renew(1).unwrap();
    all.suspect_silent(1, 1, 2).unwrap();
    assert_eq!(all.standing(1), Some(Standing::Alive), "it was seen before it renewed");
    all.rest(1).unwrap();
    all.suspect_silent(1, 2, 2).unwrap();
    assert_eq!(all.standing(1), Some(Standing::Alive), "no lease of it runs");
    all.renew(1).unwrap();
    all.suspect_silent(1, 3, 2).unwrap();
    assert_eq!(all.standing(1), Some(Standing::Suspected { by: 2 }));
    assert_eq!(all.suspect_silent(2, 1, 1), Err(Fenced(1)), "the dead judge nobody");
}

#[test]
fn the_longest_lease_is_that_of_any_client_that_can_expire() {
    let mut all = Membership::default();
    assert_eq!(all.longest_lease(), 0);
    for (client, lease) in [(1, 100), (2, 5_000), (3, Nanos::MAX / 2)] {
        all.join(client, all.epoch(), lease, None).unwrap();
    }
    assert_eq!(all.longest_lease(), 5_000, "at rest as well");
    all.suspect(2, 1).unwrap();
    assert_eq!(all.longest_lease(), 5_000, "its locks are not free yet");
}

#[test]
fn charges_pass_to_who_suspects_the_recoverer() {
    let mut all = alive(&[1, 2, 3, 4]);
    all.suspect(1, 2).unwrap();
    all.suspect(4, 2).unwrap();
    all.recovered(4, 2, Verdicts::default()).unwrap();
    all.suspect(2, 3).unwrap();
    assert_eq!(all.suspect(3, 2), Err(Fenced(2)), "the dead suspect nobody");
    assert_eq!(all.charges(3).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(all.recovered(1, 2, Verdicts::default()), Err(Fenced(2)), "the earlier recoverer decides nothing");
    assert_eq!(all.standing(4), Some(Standing::Recovered { by: 3 }), "what was decided stays decided");
}

#[test]
fn who_leaves_hands_over_what_it_has_not_repaired() {
    let mut all = alive(&[1, 2, 3]);
    all.suspect(1, 2).unwrap();
    all.leave(2).unwrap();
    assert_eq!(all.standing(1), Some(Standing::Suspected { by: 0 }));
    all.adopt(3);
    assert_eq!(all.charges(3).collect::<Vec<_>>(), [1]);
}

#[test]
fn an_epoch_ends_everybody_but_those_who_look_after_the_nodes() {
    let node = |number| NodeSet::default().with(NodeId(number));
    let mut all = alive(&[1, 2]);
    for controller in [3, 4] {
        all.join_controller(Ok(controller), LEASE, None);
        all.renew(controller).unwrap();
    }
    assert_eq!(all.lose(node(0), 1), Err(Fenced(1)), "no controller");
    all.lose(node(0), 3).unwrap();
    all.lose(node(1), 4).unwrap();
    assert_eq!((all.renew(1), all.renew(4)), (Err(Fenced(1)), Ok(())));
    assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging));
    let conducting = all.conducting(3).unwrap();
    assert_eq!((conducting.epoch, conducting.lost, &*conducting.clients), (2, node(0).with(NodeId(1)), &[1, 2][..]));
    assert!(conducting.wait > LEASE && all.conducting(4).is_none());
    all.stopped(1);
    all.stopped(2);
    assert_eq!(all.conducting(3).unwrap().wait, 0);
    // The conductor dies. The controller that suspects it continues the change.
    all.suspect(3, 4).unwrap();
    assert_eq!(all.begin_epoch(3, &conducting, NodeSet::default()), Err(Fenced(3)));
    let taken_over = all.conducting(4).unwrap();
    assert_eq!(taken_over.clients, [1, 2, 3]);
    assert_eq!(all.begin_epoch(4, &conducting, NodeSet::default()), Ok(false), "there is one more to recover");
    let verdicts: Vec<_> = taken_over.clients.iter().map(|client| (*client, Verdicts::default())).collect();
    assert_eq!(all.decided(3, &verdicts), Err(Fenced(3)));
    assert_eq!(all.decided(4, &verdicts), Ok(()));
    assert_eq!(all.begin_epoch(4, &taken_over, NodeSet::default()), Ok(true));
    assert_eq!((all.epoch(), all.lost(), all.is_changing()), (2, node(0).with(NodeId(1)), false));
    assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging), "of the former epoch");
    assert_eq!(all.join(6, 2, LEASE, None), Ok(6));
    assert_eq!(all.standing(2), Some(Standing::Recovered { by: 0 }));
}

#[test]
fn an_epoch_ends_a_controller_that_repairs_a_dead_client() {
    let lost = NodeSet::default().with(NodeId(0));
    let mut all = alive(&[1, 2]);
    for controller in [3, 4, 5] {
        all.join_controller(Ok(controller), LEASE, None);
        all.renew(controller).unwrap();
    }
    all.suspect(1, 3).unwrap();
    all.suspect(2, 4).unwrap();
    all.recovered(2, 4, Verdicts::default()).unwrap();
    all.lose(lost, 5).unwrap();
    assert_eq!(all.renew(3), Err(Fenced(3)), "its repair of client 1 may be under way");
    assert_eq!(all.renew(4), Ok(()), "it has decided and repaired its charge");
    assert_eq!(all.conducting(5).unwrap().clients, [1, 2, 3], "the conductor revokes 3 before it decides");
    // The conductor itself goes on, whatever it has to repair.
    let mut all = alive(&[1]);
    all.join_controller(Ok(3), LEASE, None);
    all.suspect(1, 3).unwrap();
    all.lose(lost, 3).unwrap();
    assert_eq!((all.renew(3), all.conducting(3).unwrap().clients), (Ok(()), vec![1]));
}

#[test]
fn a_node_that_was_lost_is_told_so_and_one_that_was_drained_is_not() {
    let node = |number| NodeSet::default().with(NodeId(number));
    let mut all = Membership::default();
    all.join_controller(Ok(1), LEASE, None);
    all.renew(1).unwrap();
    let begin = |all: &mut Membership, emptied: NodeSet| {
        let conducting = all.conducting(1).unwrap();
        assert_eq!(all.begin_epoch(1, &conducting, emptied), Ok(true));
    };
    all.drain(node(2));
    all.lose(node(0), 1).unwrap();
    assert_eq!(all.given_up(NodeId(0)), None, "it is not lost yet");
    begin(&mut all, NodeSet::default());
    all.rearrange(1).unwrap();
    begin(&mut all, node(2));
    assert_eq!(all.lost(), node(0).with(NodeId(2)));
    assert_eq!([0, 1, 2].map(|number| all.given_up(NodeId(number))), [Some(2), None, None]);
    all.admit(node(0).with(NodeId(2)), 1).unwrap();
    begin(&mut all, NodeSet::default());
    assert_eq!((all.lost(), all.given_up(NodeId(0))), (NodeSet::default(), None));
    // A node that dies while it is admitted may have been given something. So may a node whose
    // conductor dies.
    all.lose(node(1), 1).unwrap();
    begin(&mut all, NodeSet::default());
    all.admit(node(1), 1).unwrap();
    all.lose(node(1), 1).unwrap();
    begin(&mut all, NodeSet::default());
    assert_eq!((all.lost(), all.given_up(NodeId(1))), (node(1), Some(all.epoch())));
}

#[test]
fn a_node_that_is_added_is_one_that_was_lost_and_comes_back() {
    let node = |number| NodeSet::default().with(NodeId(number));
    let mut all = Membership::default();
    all.join_controller(Ok(1), LEASE, None);
    all.renew(1).unwrap();
    assert_eq!(["c:1", "d:1", "c:1"].map(|place| all.add(3, place)), [3, 4, 3].map(|number| Some(NodeId(number))));
    assert_eq!(
        (all.lost(), all.given_up(NodeId(3))),
        (node(3).with(NodeId(4)), None),
        "nobody has to give up anything"
    );
    all.fill(node(3));
    all.admit(node(3), 1).unwrap();
    let conducting = all.conducting(1).unwrap();
    assert_eq!((conducting.admitted, conducting.lost, conducting.filling), (node(3), node(4), node(3)));
    all.begin_epoch(1, &conducting, NodeSet::default()).unwrap();
    assert_eq!((all.lost(), all.add(3, "c:1")), (node(4), Some(NodeId(3))));
    assert_eq!(all.lost(), node(4), "it is there, and is not lost by being added again");
    all.drain(node(3));
    all.fill(node(3));
    assert!(all.filling().is_empty(), "it is to have nothing");
    for number in 5..64 {
        assert_eq!(all.add(3, &format!("e:{number}")), Some(NodeId(number)));
    }
    assert_eq!(all.add(3, "f:1"), None);
    let mut new = Membership::default();
    new.catch_up(2, node(4), all.added());
    assert_eq!(new.added(), all.added());
}

#[test]
fn a_node_that_leaves_keeps_its_copies_unless_fewer_will_do() {
    let node = |number| NodeSet::default().with(NodeId(number));
    let mut all = Membership::default();
    all.join_controller(Ok(1), LEASE, None);
    all.renew(1).unwrap();
    all.drain_to_fewer(node(0));
    all.drain(node(1));
    assert_eq!((all.leaving(), all.expendable()), (node(0).with(NodeId(1)), node(0)));
    all.drain(node(0));
    assert_eq!(all.expendable(), node(0), "once is enough");
    all.rearrange(1).unwrap();
    let conducting = all.conducting(1).unwrap();
    assert_eq!((conducting.leaving, conducting.expendable), (all.leaving(), node(0)));
    all.stay(node(0));
    assert_eq!((all.leaving(), all.expendable()), (node(1), NodeSet::default()));
    assert_eq!(all.begin_epoch(1, &conducting, NodeSet::default()), Ok(false), "one of them stays");
    all.drain(node(0));
    assert!(all.expendable().is_empty(), "that was another time");
}

#[test]
fn a_change_that_nobody_conducts_is_taken_up() {
    let lost = NodeSet::default().with(NodeId(2));
    let mut all = alive(&[1, 2]);
    all.join_controller(Ok(3), LEASE, None);
    all.lose(lost, 3).unwrap();
    all.resign(3).unwrap();
    all.join_controller(Ok(4), LEASE, None);
    all.renew(4).unwrap();
    assert!(all.is_abandoned() && all.conducting(4).is_none());
    all.adopt(4);
    let conducting = all.conducting(4).unwrap();
    assert_eq!((conducting.lost, &*conducting.clients), (lost, &[1, 2][..]));
    assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging), "no client comes meanwhile");
}

#[test]
fn a_table_has_one_version_cache_at_a_time() {
    let mut all = alive(&[1, 2, 3, 9]);
    for (client, vcache) in [(2, 1), (3, 1), (9, 9)] {
        all.validates_by(client, vcache);
    }
    all.claim(1, &[5, 6]).unwrap();
    assert_eq!(all.claim(9, &[7]), Ok(()), "each has tables of its own");
    assert_eq!(all.claim(1, &[6, 7]), Err(OtherCache(9)));
    assert_eq!(all.claim(9, &[6]), Err(OtherCache(2)));
    all.leave(2).unwrap();
    assert_eq!(all.claim(9, &[6]), Err(OtherCache(3)));
    all.suspect(3, 9).unwrap();
    assert_eq!(all.claim(9, &[6]), Err(OtherCache(3)), "what it had begun may still commit");
    all.recovered(3, 9, Verdicts::default()).unwrap();
    assert_eq!(all.claim(9, &[6]), Ok(()));
    assert_eq!(all.claim(1, &[5, 6]), Err(OtherCache(9)), "nor does the old one come back");
    assert_eq!(all.claim(1, &[5]), Ok(()));
}

#[test]
fn who_gives_up_is_recovered_by_others_with_all_that_it_had_to_do() {
    let mut all = alive(&[1, 2, 3]);
    all.suspect(1, 2).unwrap();
    all.give_up(2).unwrap();
    assert_eq!((all.renew(2), all.give_up(2)), (Err(Fenced(2)), Err(Fenced(2))));
    all.adopt(3);
    assert_eq!(all.charges(3).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn who_repairs_neither_rests_nor_is_out_of_the_judges_sight() {
    let mut all = alive(&[1, 2]);
    all.suspect(1, 2).unwrap();
    all.rest(2).unwrap();
    assert_eq!(all.leases().count(), 1);
    all.recovered(1, 2, Verdicts::default()).unwrap();
    all.rest(2).unwrap();
    assert_eq!((all.leases().count(), all.standing(1)), (0, Some(Standing::Recovered { by: 0 })));
    all.adopt(2);
    assert_eq!(all.charges(2).collect::<Vec<_>>(), [1]);
}

#[test]
fn no_two_clients_have_the_same_incarnation() {
    let mut all = alive(&[1, 2]);
    // This controller cannot reach the node from which clients draw their incarnations.
    assert_eq!(all.join_controller(Err(0), LEASE, None), 3);
    // These clients can.
    assert_eq!(all.join(3, 1, LEASE, None), Ok(4));
    assert_eq!(all.join(4, 1, LEASE, None), Ok(5));
    assert_eq!(all.join(7, 1, LEASE, None), Ok(7));
    assert_eq!(all.join(6, 1, LEASE, None), Ok(6), "the client that drew it joins late");
    // Clients that are gone have had their incarnations, too.
    all.leave(7).unwrap();
    assert_eq!(all.reserve(Err(0)), 8);
    assert_eq!(all.join_controller(Ok(8), LEASE, None), 9);
    // A memory node knows of clients that a new membership does not know.
    assert_eq!(all.reserve(Err(20)), 21);
}
