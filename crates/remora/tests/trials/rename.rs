//! Tables that get another name, or are dropped, also while they grow.

use remora::admin::Freed;
use remora::floors::fabric::{ClientId, Lane, NodeId, block_on};
use remora::floors::node::{MemoryError, Metadata, TableSpec, metadata};
use remora::protocol::Protocol;
use remora::{
    Cluster, DynOptions, DynSchema, LargeOptions, Lengths, OpenErrorKind, OrderedOptions, Table, TableOptions,
};

use crate::small::{ROW, Row, assert_whole, rows, small};
use crate::support;

#[test]
fn handles_and_rows_stay() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD, Protocol::NO_WAIT] {
        let cluster = small(protocol);
        let before: Table<u64, Row> = cluster.create_table("rows", TableOptions::for_rows(300)).unwrap();
        cluster.load(&before, rows(100)).unwrap();
        let mut worker = support::worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            session.transact(async |tx| before.update(tx, 1, ROW).await).await.unwrap();
            cluster.rename_table("rows", "past").unwrap();
            // Its handle, and what its client remembers, are as good as before.
            session.transact(async |tx| before.remove(tx, 2).await).await.unwrap();
        });
        assert_eq!(cluster.open_table::<u64, Row>("rows").unwrap_err().kind(), OpenErrorKind::NoTable);
        let after: Table<u64, Row> = cluster.open_table("past").unwrap();
        assert!(worker.drain().unwrap());
        assert_whole(&cluster, &after, 99);
        assert_whole(&cluster, &before, 99);
        // The old name is another table's.
        let other: Table<u64, u64> = cluster.create_table("rows", TableOptions::for_rows(10)).unwrap();
        worker.block_on(async |session| {
            let both = async |tx: &mut remora::Transaction<'_, '_>| {
                other.insert(tx, 1, 5).await?;
                before.insert(tx, 2, ROW).await?;
                after.insert(tx, 1_000, ROW).await
            };
            session.transact(both).await.unwrap();
        });
        assert!(worker.drain().unwrap());
        assert_whole(&cluster, &after, 101);
        assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
        cluster.rename_table("past", "rows").unwrap();
        assert_whole(&cluster, &before, 101);
    }
}

#[test]
fn all_parts_of_a_table_get_the_name() {
    let cluster = support::embedded(Protocol::default(), 2);
    let ordered = cluster.create_ordered::<u64, [u64; 100]>("ordered", OrderedOptions::for_rows(100)).unwrap();
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(10, 10_000)).unwrap();
    let schema = DynSchema::new("notes", Lengths::UpTo(40), Lengths::UpTo(4_000));
    let notes = cluster.create_dyn_table("notes", &schema, DynOptions::for_rows(10)).unwrap();
    let mut worker = support::worker(&cluster, 1, 1);
    worker.block_on(async |session| {
        large.write(session, 1, &[3; 20_000]).await.unwrap();
        let write = async |tx: &mut remora::Transaction<'_, '_>| {
            ordered.insert(tx, 1, [7; 100]).await?;
            notes.put(tx, b"key", &[8; 3_000]).await
        };
        session.transact(write).await.unwrap();
    });
    cluster.rename_ordered("ordered", "ordered 2").unwrap();
    cluster.rename_large("large", "large 2").unwrap();
    cluster.rename_dyn_table("notes", "notes 2").unwrap();
    let names: Vec<_> = cluster.catalog().tables.iter().map(|table| table.spec.name.clone()).collect();
    assert!(names.iter().all(|name| name.contains(" 2")), "{names:?}");
    let ordered = cluster.open_ordered::<u64, [u64; 100]>("ordered 2").unwrap();
    let large = cluster.open_large::<u64>("large 2").unwrap();
    let notes = cluster.open_dyn_table("notes 2", &schema).unwrap();
    worker.block_on(async |session| {
        assert_eq!(large.read(session, 1).await.unwrap(), Some(vec![3; 20_000]));
        let read = async |tx: &mut remora::Transaction<'_, '_>| {
            assert_eq!(ordered.get(tx, 1).await?, Some([7; 100]));
            assert_eq!(notes.get(tx, b"key").await?, Some(vec![8; 3_000]));
            Ok(())
        };
        session.transact(read).await.unwrap();
    });
    let missing = cluster.rename_ordered("ordered", "x").unwrap_err();
    assert_eq!(missing.kind(), OpenErrorKind::NoTable, "{missing}");
}

#[test]
fn names_that_cannot_be_given_change_nothing() {
    let cluster = small(Protocol::default());
    let options = TableOptions::for_rows(10);
    let _one: Table<u64, u64> = cluster.create_table("one", options).unwrap();
    let _two: Table<u64, u64> = cluster.create_table("two", options).unwrap();
    let before = cluster.catalog();
    let long = "n".repeat(65);
    for (from, to, kind) in [
        ("one", "two", OpenErrorKind::TableExists),
        ("one", "one", OpenErrorKind::TableExists),
        ("three", "four", OpenErrorKind::NoTable),
        ("one", "", OpenErrorKind::Argument),
        ("one", "a\nb", OpenErrorKind::Argument),
        ("one", &*long, OpenErrorKind::Argument),
    ] {
        let error = cluster.rename_table(from, to).unwrap_err();
        assert_eq!(error.kind(), kind, "{from} to {to}: {error}");
    }
    let _dropped = cluster.drop_table("two").unwrap();
    assert_eq!(cluster.rename_table("two", "three").unwrap_err().kind(), OpenErrorKind::Dropped);
    assert_eq!(cluster.catalog().table("one").unwrap().1.born, before.table("one").unwrap().1.born);
}

/// Has a table grow into one that grows, too, up to where the rows would move.
fn begin_two_growths(cluster: &Cluster, name: &str) {
    let catalog = cluster.catalog();
    let (first, entry) = catalog.table(name).unwrap();
    let (born, spec, nodes) = (entry.born, entry.spec.clone(), cluster.live_nodes());
    let begun = block_on(cluster.fabric(), ClientId(0), async |lane: &Lane| {
        // The names are what a client knew before the table was given another.
        let spec = TableSpec { name: "a stale name".to_owned(), ..spec };
        let larger = (spec.clone(), NodeId(0));
        let (second, _) = metadata::begin_growth(lane, nodes, nodes, 1, (first, born), larger.clone()).await?;
        let catalog = metadata::fill_larger(lane, nodes, 1, (first, born), name).await?;
        let born = catalog.tables[usize::from(second.0)].born;
        metadata::begin_growth(lane, nodes, nodes, 1, (second, born), larger).await
    });
    let (_, catalog): (_, Metadata) = begun.unwrap().unwrap_or_else(|error: MemoryError| panic!("{error}"));
    let named = catalog.tables.iter().filter(|table| table.is_there() && table.spec.name == name);
    assert_eq!(named.count(), 3, "all three have the name of the first one");
}

#[test]
fn a_table_that_grows_twice_at_once_is_renamed_and_goes_on() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let cluster = small(protocol);
        let table: Table<u64, Row> = cluster.create_table("rows", TableOptions::for_rows(300)).unwrap();
        cluster.load(&table, rows(100)).unwrap();
        begin_two_growths(&cluster, "rows");
        cluster.rename_table("rows", "past").unwrap();
        let catalog = cluster.catalog();
        let names: Vec<_> = catalog.tables.iter().filter(|table| table.is_there()).map(|one| &one.spec.name).collect();
        assert_eq!(names, ["past"; 3]);
        cluster.grow_table("past", 300).unwrap();
        assert_whole(&cluster, &table, 100);
        assert_eq!(cluster.catalog().tables.iter().filter(|table| table.is_there()).count(), 1);
    }
}

#[test]
fn a_table_that_grows_twice_at_once_is_dropped_whole() {
    let cluster = small(Protocol::default());
    let table: Table<u64, Row> = cluster.create_table("rows", TableOptions::for_rows(300)).unwrap();
    cluster.load(&table, rows(100)).unwrap();
    begin_two_growths(&cluster, "rows");
    assert_eq!(cluster.drop_table("rows").unwrap(), Freed::Now);
    let catalog = cluster.catalog();
    assert_eq!(catalog.tables.iter().filter(|table| !table.is_vacant()).count(), 0, "none of the three is left");
    let table: Table<u64, Row> = cluster.create_table("rows", TableOptions::for_rows(300)).unwrap();
    cluster.load(&table, rows(100)).unwrap();
    assert_whole(&cluster, &table, 100);
}

#[test]
fn tables_are_listed_with_what_they_have() {
    let cluster = small(Protocol::default());
    let table: Table<u64, Row> = cluster.create_table("b", TableOptions::for_rows(300).grows(false)).unwrap();
    let _other: Table<[u8; 16], u64> = cluster.create_table("a", TableOptions::for_rows(10).replicas(1)).unwrap();
    cluster.load(&table, rows(100)).unwrap();
    let all = cluster.list_tables().unwrap();
    let seen: Vec<_> = all.iter().map(|one| (&*one.name, one.key_bytes, one.value_bytes, one.copies)).collect();
    assert_eq!(seen, [("a", 16, 8, 1), ("b", 8, 8, 2)]);
    assert_eq!(all.iter().map(|one| &*one.schema).collect::<Vec<_>>(), ["u64", &<Row as remora::Record>::schema()]);
    assert_eq!([(all[0].grows, all[0].growing_to), (all[1].grows, all[1].growing_to)], [(true, None), (false, None)]);
    assert!(all[1].room >= 300 && all[1].bytes >= 2 * 300 * 32, "{all:?}");
    assert_eq!(cluster.count_rows("b").unwrap(), 100);
    begin_two_growths(&cluster, "b");
    assert_eq!(cluster.list_tables().unwrap()[1].growing_to, Some(all[1].room));
    assert_eq!(cluster.count_rows("b").unwrap(), 100);
    cluster.grow_table("b", 300).unwrap();
    assert_eq!((cluster.list_tables().unwrap()[1].growing_to, cluster.count_rows("b").unwrap()), (None, 100));
}
