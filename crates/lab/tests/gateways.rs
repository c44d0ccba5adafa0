//! Tests of campaigns of Redis' clients: they are deterministic, find no error in gateways, and
//! find each error that is put back.

use remora::protocol::Protocol;
use remora_gateway::mutant::Mutant;
use remora_lab::campaign::{Case, Load, campaign, faults_of, mutation_score, run};

fn case(faults: &[&str]) -> Case {
    let faults: Vec<String> = faults.iter().map(|name| (*name).to_owned()).collect();
    Case { transactions: 300, ..Case::new(0, Load::Redis, Protocol::FORD, &faults) }
}

#[test]
fn the_same_case_is_the_same_history_byte_for_byte() {
    let case = Case { seed: 3, ..case(&["crash", "pause", "delay"]) };
    let (one, two) = (run(&case).unwrap(), run(&case).unwrap());
    assert_eq!((one.digest, one.events, one.committed), (two.digest, two.events, two.committed));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn each_error_that_a_gateway_could_have_is_found() {
    let case = case(&["fail", "crash", "cancel", "pause"]);
    for caught in mutation_score(&Mutant::ALL, &case, 0..10, 2, &|_, _| {}) {
        assert!(caught.seed.is_some(), "{:?} survives", caught.mutant);
    }
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn gateways_survive_all_faults_under_each_protocol() {
    for protocol in Protocol::DISTINCT {
        let faults = faults_of(Load::Redis, protocol);
        let case = Case { transactions: 300, ..Case::new(0, Load::Redis, protocol, &faults) };
        let summary = campaign(&case, 0..10, 2, &|| {});
        assert_eq!(summary.violating, 0, "{protocol:?}: {:?}", summary.violations);
    }
}
