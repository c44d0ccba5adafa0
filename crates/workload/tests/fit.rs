//! Tests that a profile fitted to a cluster behaves as that cluster does, even from a base that is
//! far from it.

use std::ops::ControlFlow;
use std::time::Duration;

use remora_fabric::sim::{Path, Profile, Sim, SimOptions};
use remora_workload::micro::fit::{FitError, fit};
use remora_workload::micro::verbs::{self, Stand, VerbFigures, VerbKind};

/// Returns what `bench micro` would measure on hardware that this profile describes.
fn measured(hardware: &Profile) -> Vec<VerbFigures> {
    let options = SimOptions { hostile: false, ..SimOptions::new(hardware.clone(), 7) };
    let sim = Sim::new(&verbs::regions(), &options).unwrap();
    let stand = Stand::simulated(&sim, hardware.path == Path::Loads, 7).unwrap();
    stand.measure(&VerbKind::ALL, Duration::ZERO, |_| ControlFlow::Continue(())).unwrap()
}

fn named(name: &str) -> Profile {
    Profile::named(name).unwrap()
}

/// Returns a card that has no value in common with the profiles of the simulator.
fn slow_card() -> Profile {
    let mut card = named("connectx4");
    let Profile { machine, nic, cpu, calls, .. } = &mut card;
    machine.nics = 1;
    for time in [&mut nic.send_ns, &mut nic.wire_ns, &mut nic.receive_ns, &mut nic.dma_read_ns] {
        *time *= 5.0;
    }
    (nic.link_gb_s, nic.fetch_ns, cpu.doorbell_ns, cpu.post_ns) = (2.5, 3_000.0, 400.0, 150.0);
    (nic.read_ns, nic.atomic_ns, calls.serve_ns) = (900.0, 300.0, 900.0);
    card
}

#[test]
fn a_fitted_profile_measures_as_the_hardware_does() {
    let shared = || {
        let mut memory = named("cxl");
        (memory.nic.dma_read_ns, memory.nic.dma_write_ns, memory.cpu.post_ns) = (40.0, 25.0, 12.0);
        memory
    };
    for (hardware, base) in [
        (named("connectx4"), "connectx5"),
        (slow_card(), "connectx5"),
        (named("r74v"), "connectx3"),
        (named("efa"), "ethernet10g"),
        (shared(), "cxl"),
    ] {
        let inline = Some(hardware.nic.inline_bytes);
        let fitted = fit(&named(base), "mine", &measured(&hardware), inline, 1).unwrap();
        assert_eq!(fitted.checks.len(), 3 * VerbKind::ALL.len());
        let off: Vec<_> = fitted.checks.iter().filter(|check| check.is_off()).collect();
        assert!(off.is_empty(), "{} from {base}: {off:#?}\n{:#?}", hardware.name, fitted.profile);
        let text = fitted.to_toml("two\nlines");
        assert_eq!(Profile::parse(&text).unwrap(), fitted.profile, "what is written is what was checked");
        assert!(text.starts_with("# two\n# lines\n#\n") && text.contains("\n# CAS: "), "{text}");
        let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        assert!(line("drift_ppm").ends_with(&format!("# as {base}, not measured")), "{text}");
        assert!(line("doorbell_ns").contains("# derived: by simulation"), "{text}");
    }
}

#[test]
fn what_has_not_been_measured_is_named() {
    let figures = measured(&named("connectx5"));
    let without: Vec<_> = figures.iter().copied().filter(|figures| figures.kind != VerbKind::CAS).collect();
    let error = fit(&named("connectx5"), "mine", &without, None, 1).unwrap_err();
    assert!(matches!(error, FitError::Missing(VerbKind::CAS)), "{error}");
}
