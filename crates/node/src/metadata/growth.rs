//! Changes of the catalog by which a table grows into a larger one. The rules are on the module's
//! page.

use remora_fabric::{Lane, NodeId, NodeSet};

use super::catalog::{Newcomer, Places, enter, places_from, with_catalog_locked};
use super::format::{publish, read};
use super::tables::{Growth, Metadata, Stage, TableSpec, Tombstone};
use crate::error::MemoryError;
use crate::id::TableId;

/// A table by its id, with the generation that it was born with.
type Born = (TableId, u64);

/// Enters a larger table of this spec, into which the table `smaller` grows, and names `client` as
/// the one that moves the rows. If such a table exists already, only the client is named. Returns
/// the larger table and the catalog. The larger table lies as a new table does
/// ([`create_table`](super::create_table)): with fewer copies, if there are too few places.
///
/// Fails with [`MemoryError::Dropped`] if the smaller table was dropped, and with
/// [`MemoryError::Unfinished`] while a client creates it.
pub async fn begin_growth(
    lane: &Lane,
    nodes: NodeSet,
    places: impl Into<Places>,
    client: u32,
    smaller: Born,
    (spec, first): (TableSpec, NodeId),
) -> Result<(TableId, Metadata), MemoryError> {
    let places = places_from(places.into(), first, &spec)?;
    let begin = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        has(&metadata, smaller, &spec.name)?;
        let (from, stage, by) = (smaller.0, Stage::Announced, client);
        let entry = &metadata.tables[usize::from(from.0)];
        // The table may have been renamed meanwhile.
        let spec = TableSpec { name: entry.spec.name.clone(), ..spec };
        if let Some(creator) = entry.creator {
            return Err(MemoryError::Unfinished { table: spec.name, client: creator });
        }
        if let Some((larger, _)) = metadata.larger(from) {
            let growth = metadata.tables[usize::from(larger.0)].growth.as_mut();
            growth.into_iter().for_each(|growth| growth.by = client);
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
            return Ok((larger, metadata));
        }
        let newcomer = Newcomer { spec, creator: None, growth: Some(Growth { from, stage, by }) };
        let larger = enter(lane, nodes, &places, &mut metadata, newcomer).await?;
        Ok((larger, metadata))
    };
    with_catalog_locked(lane, nodes.leader(), client, begin).await
}

/// Makes clients insert into the larger table from now on. Every client must know already that the
/// table grows. Returns the catalog.
pub async fn fill_larger(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    smaller: Born,
    name: &str,
) -> Result<Metadata, MemoryError> {
    let fill = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        has(&metadata, smaller, name)?;
        let larger = metadata.larger(smaller.0).map(|(larger, _)| usize::from(larger.0));
        if let Some(growth) = larger.and_then(|larger| metadata.tables[larger].growth.as_mut()) {
            growth.stage = Stage::Filling;
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
        }
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, fill).await
}

/// Drops a table that has grown, which is empty and stays so, and gives its name to the larger one.
/// Returns the catalog.
pub async fn finish_growth(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    smaller: Born,
    name: &str,
) -> Result<Metadata, MemoryError> {
    let finish = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        has(&metadata, smaller, name)?;
        let Some((larger, _)) = metadata.larger(smaller.0) else { return Ok(metadata) };
        metadata.generation += 1;
        let entry = &mut metadata.tables[usize::from(smaller.0.0)];
        entry.dropped = Some(Tombstone { generation: metadata.generation, last_client: None });
        // Another table may be growing into the smaller one.
        let before = entry.growth.take();
        metadata.tables[usize::from(larger.0)].growth = before;
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, finish).await
}

/// Fails if a table was dropped or replaced.
fn has(metadata: &Metadata, (id, born): Born, name: &str) -> Result<(), MemoryError> {
    let is_there = metadata.tables.get(usize::from(id.0)).is_some_and(|table| table.is_there() && table.born == born);
    if is_there { Ok(()) } else { Err(MemoryError::Dropped { table: name.to_owned() }) }
}
