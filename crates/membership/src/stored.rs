//! The stored form of the membership, outside of this process: JSON, with its kind, its format and
//! the cluster's id.

use serde::{Deserialize, Serialize};

use crate::configuration::ConfigurationError;
use crate::membership::Membership;

const KIND: &str = "remora configuration";
pub(crate) const FORMAT: u32 = 4;

/// The part that every version of the format has.
#[derive(Deserialize)]
struct Head {
    kind: String,
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Content {
    kind: String,
    format: u32,
    cluster: u64,
    /// The change that made this value, where its author may have to look for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change: Option<u64>,
    membership: Membership,
}

/// Encodes a membership for storing.
pub(crate) fn encode(cluster: u64, change: Option<u64>, membership: Membership) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Content { kind: KIND.to_owned(), format: FORMAT, cluster, change, membership })
}

/// Decodes a stored membership of a cluster. Returns it with the change that made it. `place` is
/// for errors.
pub(crate) fn decode(
    text: &[u8],
    cluster: u64,
    place: impl Fn() -> String,
) -> Result<(Membership, Option<u64>), ConfigurationError> {
    let foreign = |_| ConfigurationError::Foreign(place());
    let head: Head = serde_json::from_slice(text).map_err(foreign)?;
    if head.kind != KIND {
        return Err(ConfigurationError::Foreign(place()));
    }
    if head.format != FORMAT {
        return Err(ConfigurationError::Format { place: place(), found: head.format, known: FORMAT });
    }
    let content: Content = serde_json::from_slice(text).map_err(foreign)?;
    if content.cluster != cluster {
        return Err(ConfigurationError::OtherCluster(place()));
    }
    Ok((content.membership, content.change))
}
