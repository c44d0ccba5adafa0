//! FORD's cluster (section 6.1), and the baselines that are compared with it.

use remora::floors::txn::Primitives;
use remora::protocol::Protocol;
use remora_fabric::sim::{Deployment, Profile, SimOptions};

use crate::reproduce::{ReproduceError, as_the_texts};

/// The profile of the machines and their NICs.
pub(super) const PROFILE: &str = "connectx5";
/// The medium of the memory nodes.
const MEDIUM: &str = "optane";
pub(super) const MEMORY_NODES: u16 = 2;
pub(super) const COPIES: u8 = 2;

pub(super) const FARM: Protocol = Protocol::Occ(Primitives::FARM_ONE_SIDED);
pub(super) const DRTM_H: Protocol = Protocol::Occ(Primitives::DRTM_H_ONE_SIDED);

/// Returns the hardware of this profile, with persistent memory.
pub(super) fn hardware(profile: &'static str, seed: u64) -> Result<SimOptions, ReproduceError> {
    let profile = Profile::named(profile).ok_or(ReproduceError::NoProfile(profile))?;
    Ok(SimOptions {
        medium: MEDIUM.to_owned(),
        ddio: false,
        deployment: Deployment::Disaggregated,
        ..as_the_texts(profile, seed)
    })
}
