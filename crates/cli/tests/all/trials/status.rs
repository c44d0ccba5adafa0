//! What `status` and other commands report about the configuration of another cluster.

use std::fs;

use crate::support::{Ended, Node, listen, remora, scratch, words};

fn bench(name: &str, connect: &str, configuration: &str) -> Ended {
    let line = format!(
        "bench smallbank --threads 1 --accounts 100 --transactions 10 --connect {connect} --configuration {configuration}"
    );
    remora(name, &words(&line))
}

#[test]
fn rows_are_shown_whatever_is_wrong_with_the_configuration() {
    let places = ["status-one", "status-other"].map(scratch);
    places.iter().for_each(|place| drop(fs::remove_file(place))); // of an earlier run
    let [one, other] = places.each_ref().map(|place| place.to_str().unwrap());
    let (_nodes, connect) = listen("status-one", 2);
    let (_others, other_connect) = listen("status-other", 2);
    assert_eq!(bench("status-bench-one", &connect, one).code, Some(0));
    assert_eq!(bench("status-bench-other", &other_connect, other).code, Some(0));
    for (place, why) in [(other, "is the configuration of another cluster"), ("/nonexistent/place", "there is no")] {
        let line = format!("status --connect {connect} --configuration {place}");
        let shown = remora("status-wrong", &words(&line));
        assert_eq!(shown.code, Some(2), "{}", shown.errors);
        assert!(shown.errors.contains(why) && shown.errors.contains(place), "{}", shown.errors);
        let rows = connect.split(',').chain(["savings", "checking"]);
        assert!(rows.clone().all(|row| shown.output.contains(row)), "{}", shown.output);
        let shown = remora("status-wrong", &words(&format!("{line} --report -")));
        let report: serde_json::Value = serde_json::from_str(&shown.output).unwrap();
        assert_eq!(report["nodes"].as_array().map(Vec::len), Some(2), "{report}");
        assert!(report["configuration_error"].as_str().unwrap().contains(why), "{report}");
    }
    let shown = remora("status-right", &words(&format!("status --connect {connect} --configuration {one}")));
    assert_eq!(shown.code, Some(0), "{}", shown.errors);
    assert!(shown.output.contains("epoch 1"), "{}", shown.output);
}

/// All memory nodes were started anew: they are another cluster now, and the configuration of the
/// former one is left.
#[test]
fn the_configuration_of_a_cluster_that_is_gone_can_be_removed() {
    let place = scratch("status-gone");
    let _ = fs::remove_file(&place); // of an earlier run
    let configuration = place.to_str().unwrap();
    let node = Node::listen("status-gone-before", "");
    assert_eq!(bench("status-gone", node.address(), configuration).code, Some(0));
    let listening = format!("--listen {} --size 64MiB", node.address());
    drop(node);
    let node = Node::start("status-gone-after", &listening);
    let refused = bench("status-gone", node.address(), configuration);
    assert_eq!(refused.code, Some(2));
    let said = format!("memory nodes were started anew, remove {configuration}");
    assert!(refused.errors.contains(&said), "{}", refused.errors);
    fs::remove_file(&place).unwrap();
    assert_eq!(bench("status-gone", node.address(), configuration).code, Some(0));
}
