//! Limits are checked before anything is computed from them, and errors say which table, key, limit
//! and number.

use std::time::Duration;

use remora::floors::txn::limits::SET_MAX;
use remora::protocol::Protocol;
use remora::{
    Cluster, Design, Error, Intent, LARGE_BYTES_MAX, LargeOptions, Limit, OpenError, OpenErrorKind, OrderedOptions,
    Table, TableOptions, TransactionOptions, WorkerOptions,
};

use super::support::{Words, embedded, options, table, worker};

fn small(protocol: Protocol) -> Cluster {
    options(protocol, 1).node_bytes(2 << 20).open().unwrap()
}

/// No number causes a panic: the call works, or fails with the limit.
#[test]
fn numbers_without_bounds() {
    let many = [0, 1, 63, 64, 65, 1 << 32, usize::MAX - 1, usize::MAX];
    let cluster = small(Protocol::DRTM_R);
    for coroutines in many {
        for clients in many {
            let options = WorkerOptions::default().coroutines(coroutines).clients(clients);
            if (1..=64).contains(&coroutines) && (1..=64).contains(&clients) && coroutines + clients <= 64 {
                continue; // it is made, or has no room at memory nodes
            }
            for refused in [
                cluster.worker(options).map(drop),
                cluster.db(1, options).map(drop),
                cluster.db(usize::MAX, options).map(drop),
            ] {
                let text = refused.unwrap_err().to_string();
                assert!(text.contains("coroutines") || text.contains("clients"), "{text}");
            }
        }
    }
    for threads in [0, 1 << 20, usize::MAX] {
        let text = cluster.db(threads, WorkerOptions::default()).unwrap_err().to_string();
        assert!(text.contains("threads"), "{text}");
    }
    for node_bytes in [0, 1, 63, 64, 1 << 49, usize::MAX - 63, usize::MAX] {
        let refused = options(Protocol::DRTM_R, 1).node_bytes(node_bytes).open();
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("bytes"), "{text}");
    }
    for odd in [
        Cluster::embedded().nodes(u16::MAX),
        Cluster::embedded().nodes(0),
        Cluster::embedded().replicas(u8::MAX),
        Cluster::embedded().replicas(0),
        Cluster::embedded().spares(u16::MAX),
    ] {
        odd.open().unwrap_err();
    }
    let huge = [1 << 40, 1 << 46, 1 << 48, 1 << 60, u64::MAX - 1, u64::MAX];
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let cluster = small(protocol);
        let mut number = 0;
        let mut name = || {
            number += 1;
            format!("t{number}")
        };
        for rows in huge {
            let sized = TableOptions::for_rows(rows);
            for odd in [
                sized,
                sized.shards(1),
                sized.shards(u16::MAX),
                sized.first_node(u16::MAX),
                sized.replicas(u8::MAX),
                sized.shards(0),
                sized.replicas(0),
            ] {
                cluster.create_table::<u64, Words<1>>(&name(), odd).unwrap_err();
                cluster.create_table::<[u8; 64], Words<2040>>(&name(), odd).unwrap_err();
            }
            for design in [Design::Fine, Design::Hybrid(u16::MAX), Design::Coarse(u16::MAX)] {
                let odd = OrderedOptions::for_rows(rows).apart(usize::MAX).design(design);
                assert!(!odd.tables::<u64, Words<1>>().is_empty());
                cluster.create_ordered::<u64, Words<1>>(&name(), odd.clone()).unwrap_err();
                cluster.create_ordered::<u64, Words<64>>(&name(), odd).unwrap_err();
            }
            cluster.create_large::<u64>(&name(), LargeOptions::for_values(rows, 100)).unwrap_err();
            cluster.create_large::<u64>(&name(), LargeOptions::for_values(10, rows)).unwrap_err();
        }
    }
    let cluster = embedded(Protocol::DRTM_R, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
    // Times as well.
    for lease in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        worker(&cluster.with_lease(Some(lease)), 1, 1).block_on(async |session| {
            let endless = TransactionOptions::default().deadline(lease).patience(lease);
            session.transact_with(endless, async |tx| rows.update(tx, 1, Words([2])).await).await.unwrap();
            session.transact(async |tx| rows.get(tx, 1).await).await.unwrap();
        });
    }
}

/// Errors of transactions name the record, the limit and the number.
fn errors_name_what_they_are_about(protocol: Protocol) {
    let cluster = embedded(protocol, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0]));
    let wide = table(&cluster, "wide", TableOptions::for_rows(4), Words::<2040>::all(0));
    let names: Table<[u8; 5], Words<1>> = cluster.create_table("names", TableOptions::for_rows(4)).unwrap();
    let sorted = cluster.load_ordered("sorted", OrderedOptions::for_rows(9), [(1u64, Words([1]))]).unwrap();
    let full: Table<u64, Words<1>> =
        cluster.create_table("full", TableOptions::for_rows(1).shards(1).grows(false)).unwrap();
    let fuller: Table<u64, Words<1>> =
        cluster.create_table("fuller", TableOptions::for_rows(100).shards(1).grows(false)).unwrap();
    let large = cluster.create_large::<u64>("large", LargeOptions::for_values(1, 100)).unwrap();
    worker(&cluster, 1, 1).block_on(async |session| {
        let says = |error: Error, what: &[&str]| {
            let text = error.to_string();
            assert!(what.iter().all(|what| text.contains(what)), "{what:?}: {text}");
        };
        let refused = session.transact(async |tx| rows.update(tx, 4711, Words([1])).await).await.unwrap_err();
        assert!(matches!(&refused, Error::NotFound(record) if record.table() == Some("rows")));
        says(refused, &["\"rows\"", "4711", "0x0000000000001267", "not there"]);
        says(
            session.transact(async |tx| names.require(tx, *b"alice").await).await.unwrap_err(),
            &["\"names\"", "\"alice\""],
        );
        says(
            session.transact(async |tx| rows.insert(tx, 7, Words([1])).await).await.unwrap_err(),
            &["\"rows\"", "(7)", "there already"],
        );
        says(
            session.transact(async |tx| sorted.insert(tx, 1, Words([1])).await).await.unwrap_err(),
            &["\"sorted\"", "(1)", "there already"],
        );
        says(
            session.transact(async |tx| sorted.update(tx, 5, Words([1])).await).await.unwrap_err(),
            &["\"sorted\"", "(5)", "not there"],
        );
        let many = session.transact(async |tx| {
            for key in 0..=SET_MAX as u64 {
                let _ = tx.want(&rows, key);
            }
            tx.fetch().await
        });
        says(many.await.unwrap_err(), &["4096", "\"rows\"", "split"]);
        let long = session.transact(async |tx| {
            for key in 0..3 {
                wide.update(tx, key, Words::all(1)).await?;
            }
            Ok(())
        });
        let long = long.await.unwrap_err();
        assert!(matches!(long.limit(), Some(Limit::LogEntry { bytes, max: 32_768 }) if bytes > 3 * 16_000), "{long}");
        says(long, &["bytes of log", "32768"]);
        let mut fill = async |table: &Table<u64, Words<1>>| {
            let mut key = 0;
            loop {
                key += 1;
                if let Err(error) = session.transact(async |tx| table.insert(tx, key, Words([1])).await).await {
                    return (key, error);
                }
            }
        };
        let ((key, error), (other, _)) = (fill(&full).await, fill(&fuller).await);
        let slots = full.untyped().index().slots_in_all();
        assert_eq!(error.limit(), Some(Limit::TableFull { slots }));
        says(error, &["\"full\"", &format!("({key})"), "larger", &format!(" {slots} slots")]);
        // Of two records that stop a transaction, the error names the one that it is about.
        let both = session.transact(async |tx| {
            let _ = (tx.want_for(&full, key, Intent::Insert), tx.want_for(&fuller, other, Intent::Insert));
            tx.fetch().await
        });
        let error = both.await.unwrap_err();
        let is_first = error.limit() == Some(Limit::TableFull { slots });
        let (name, key) = if is_first { ("\"full\"", key) } else { ("\"fuller\"", other) };
        says(error, &[name, &format!("({key})")]);
        let too_long = large.upload(session, &vec![0; LARGE_BYTES_MAX + 1]).await.unwrap_err();
        says(too_long, &["\"large\"", &(LARGE_BYTES_MAX + 1).to_string(), &LARGE_BYTES_MAX.to_string()]);
        let not_named = session.transact(async |tx| {
            let slot = tx.want_for(&rows, 3, Intent::Update);
            tx.fetch().await?;
            slot.remove(tx)
        });
        says(not_named.await.unwrap_err(), &["\"rows\"", "(3)", "Intent::Delete"]);
    });
    let other = cluster.open_table::<u32, Words<2>>("rows").unwrap_err();
    assert_eq!(other.kind(), OpenErrorKind::OtherTypes);
    let text = other.to_string();
    assert!(["\"rows\"", "8 bytes", "4 bytes", "16 bytes", "schema"].iter().all(|what| text.contains(what)), "{text}");
}

#[test]
fn errors_name_what_they_are_about_drtm_r() {
    errors_name_what_they_are_about(Protocol::DRTM_R);
}

#[test]
fn errors_name_what_they_are_about_ford() {
    errors_name_what_they_are_about(Protocol::FORD);
}

/// A table that cannot be made: each error names the table, the limit and the number.
#[test]
fn errors_of_creations_name_their_table() {
    let cluster = embedded(Protocol::default(), 3);
    let says = |error: OpenError, wanted: &[&str]| {
        let text = error.to_string();
        assert!(wanted.iter().all(|what| text.contains(what)), "{text}");
    };
    let create = |options| cluster.create_table::<u64, Words<1>>("rows", options).unwrap_err();
    let rows = TableOptions::for_rows(100);
    says(create(TableOptions::for_rows(1 << 30)), &["table \"rows\"", "bytes wanted", "node 0"]);
    says(create(TableOptions::for_rows(0)), &["table \"rows\"", "zero"]);
    says(create(rows.shards(0)), &["table \"rows\"", "zero"]);
    says(create(rows.replicas(4)), &["table \"rows\"", "4 replicas", "there are 3"]);
    says(create(rows.shards(2_000)), &["table \"rows\"", "2000", "1024"]);
    let large = |options| cluster.create_large::<u64>("pictures", options).map(drop).unwrap_err();
    says(large(LargeOptions::for_values(0, 1)), &["table \"pictures\"", "zero"]);
    says(large(LargeOptions::for_values(1, 1 << 40)), &["table \"pictures/chunks\"", "bytes"]);
    let sorted = |options| cluster.create_ordered::<u64, Words<1>>("sorted", options).map(drop).unwrap_err();
    says(sorted(OrderedOptions::for_rows(0)), &["table \"sorted\"", "zero"]);
    says(sorted(OrderedOptions::for_rows(10).replicas(9)), &["table \"sorted", "9 replicas"]);
}
