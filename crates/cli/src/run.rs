//! One run of a workload, with its progress and its report.

use std::ops::ControlFlow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use remora::observe::Observer;
use remora_workload::driver::{Length, Progress, RunOptions};
use remora_workload::{Report, Workload};
use serde::Serialize;

use crate::bench::{Bench, Opened};
use crate::{Failure, Verdict, output};

impl Bench {
    /// Runs a workload, and shows its report.
    pub(crate) fn run<W: Workload>(&self, opened: &Opened<W>, config: &impl Serialize) -> Result<Verdict, Failure> {
        let (run, cluster) = (&self.run, &opened.cluster);
        let config = serde_json::to_value(config).map_err(|error| Failure::new("the report", error))?;
        let observer = || Some(Box::new(self.history.as_ref()?.file()?.recorder()) as Box<dyn Observer>);
        let options = RunOptions {
            threads: run.threads() as usize,
            coroutines: run.coroutines as usize,
            length: run.length(),
            seed: run.seed,
            yield_after_rounds: run.yield_after_rounds,
            rate: run.rate.map(|rate| rate as f64),
            archive: run.archive,
        };
        let ran = match &opened.sim {
            Some(sim) => {
                let bar = ProgressBar::new_spinner().with_message("simulating");
                bar.enable_steady_tick(Duration::from_millis(100));
                let done = self.simulate(opened, sim, &observer);
                bar.finish_and_clear();
                done.map(|(measured, simulated)| (measured, Some(simulated)))
            }
            None => {
                let bar = progress_bar(options.length);
                let measured = self.measure(opened, &options, &observer, |progress| {
                    advance(&bar, &options, progress);
                    self.goes_on()
                });
                bar.finish_and_clear();
                measured.map(|measured| (measured, None))
            }
        };
        let recorded = self.history.as_ref().map_or(Ok(()), |history| history.finish());
        let (mut measured, simulated) = match ran {
            Ok(ran) => ran,
            Err(failure) => return output::all([Err(failure), recorded]).map(|()| Verdict::Unsound),
        };
        let history_failure = recorded.as_ref().err().map(|Failure(why)| why.clone());
        let report = Report { simulated, history_failure, ..measured.report::<W>(cluster, self.fabric(), config) };
        let hardware = match &run.sim.profile {
            Some(profile) => format!("{}, {} client machines, ", profile.display(), run.sim.machines()),
            None => String::new(),
        };
        let setting = format!(
            "{hardware}{} memory nodes{}, {} copies, {} threads x {} coroutines, seed {}",
            run.memory_nodes(),
            self.nodes
                .as_ref()
                .map(|nodes| format!(" ({})", output::printable(&nodes.to_string())))
                .unwrap_or_default(),
            run.replicas(),
            run.threads(),
            run.coroutines,
            run.seed
        );
        let written = self.report_to.write(&report, || output::table(&report, &setting));
        let looked = measured.failure.take().map_or(Ok(()), |error| Err(self.failure(error)));
        let told = output::all([written, recorded, looked]);
        let broken: Vec<&str> = report
            .invariants
            .iter()
            .filter(|invariant| invariant.holds == Some(false))
            .map(|invariant| invariant.name)
            .collect();
        if broken.is_empty() {
            return Verdict::Sound.told(told);
        }
        output::complain(&format!("an invariant does not hold: {}", broken.join(", ")));
        Verdict::Unsound.told(told)
    }

    /// Returns whether the run goes on. It ends if its history cannot be written.
    fn goes_on(&self) -> ControlFlow<()> {
        if !self.history.as_ref().is_some_and(|history| history.is_cut()) {
            return ControlFlow::Continue(());
        }
        output::note("the history cannot be written, so the run ends now");
        ControlFlow::Break(())
    }
}

fn progress_bar(length: Length) -> ProgressBar {
    // The bar is drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(match length {
        Length::Time(length) => length.as_millis() as u64,
        Length::Transactions(transactions) => transactions,
    });
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn advance(bar: &ProgressBar, options: &RunOptions, progress: Progress) {
    if bar.is_hidden() {
        return;
    }
    bar.set_position(match options.length {
        Length::Time(_) => progress.elapsed.as_millis() as u64,
        Length::Transactions(_) => progress.ended,
    });
    let rate = progress.ended as f64 / progress.elapsed.as_secs_f64().max(1e-3);
    bar.set_message(format!("{} transactions/s", output::grouped(rate as u64)));
}
