//! What the texts have published about transactions, next to what comes out of the same experiments on simulated clusters.
//!
//! The hardware's profile is calibrated against bare verbs only ([`hardware`](crate::hardware)); nothing is fitted to the
//! figures here. What does not come out as published is shown and explained.

pub mod drtm_h;

use remora_fabric::sim::Ended;
use serde::Serialize;

use crate::LabError;

/// Why nothing came out.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A cluster could not be simulated, or a transaction failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The simulator's own profiles have been changed.
    #[error("there is no profile {0}")]
    NoProfile(&'static str),
    /// Workers waited for what never came.
    #[error("{what} came to no end: {how:?}")]
    Unfinished {
        /// The experiment.
        what: String,
        /// How it ended.
        how: Ended,
    },
}

/// One published figure, and ours.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Unit of both figures; `x` is a ratio.
    pub unit: &'static str,
    /// As printed; `None` where the text has only words, or a figure that is not transcribed.
    pub published: Option<f64>,
    /// What came out.
    pub ours: f64,
    /// How far that is above or below what was published, as a share of it.
    pub error: Option<f64>,
    /// Where it was published; empty if it was not.
    pub source: &'static str,
    /// Whether what the text says is better is better here too; `None` where it says nothing of the kind.
    pub direction_holds: Option<bool>,
    /// Why it is off, or what is different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// How far a figure may be off without a word about it.
pub const EXPLAINED_FROM: f64 = 0.25;

impl Row {
    /// A figure that nobody has published.
    fn ours(name: impl Into<String>, unit: &'static str, ours: f64) -> Row {
        let name = name.into();
        Row { name, unit, published: None, ours, error: None, source: "", direction_holds: None, note: None }
    }

    /// What was published.
    fn published(self, published: f64, source: &'static str) -> Row {
        Row { published: Some(published), error: Some(self.ours / published - 1.0), source, ..self }
    }

    /// What was said in words.
    fn said(self, source: &'static str) -> Row {
        Row { source, ..self }
    }

    /// Whether it is as the text says.
    fn holds(self, holds: bool) -> Row {
        Row { direction_holds: Some(holds), ..self }
    }

    fn note(self, note: &'static str) -> Row {
        Row { note: Some(note), ..self }
    }

    /// Ours over the published figure.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.published.map(|published| self.ours / published)
    }

    /// Whether it is not as published, so that its note has to say why.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.direction_holds == Some(false) || self.error.is_some_and(|error| error.abs() > EXPLAINED_FROM)
    }
}
