//! Users by number, and an index of their cities. One transaction changes both, so no reader ever
//! sees them differ.
//!
//! `cargo run --release -p remora --example secondary_index`

use remora::{Cluster, Error, OpenError, Ordered, OrderedOptions, Table, TableOptions, Transaction};

/// A name of at most 16 bytes, padded with zeros.
type Name = [u8; 16];

#[derive(Clone, Copy, Debug, remora::Record)]
struct User {
    city: Name,
    born: u32,
}

struct Users {
    by_number: Table<u64, User>,
    /// The city and the number of each user, as a key. The value is empty.
    by_city: Ordered<(Name, u64), [u8; 0]>,
}

fn name(text: &str) -> Name {
    let mut name = [0; 16];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

impl Users {
    async fn add(&self, tx: &mut Transaction<'_, '_>, number: u64, user: User) -> Result<(), Error> {
        self.by_number.insert(tx, number, user).await?;
        self.by_city.insert(tx, (user.city, number), []).await
    }

    async fn move_to(&self, tx: &mut Transaction<'_, '_>, number: u64, city: &str) -> Result<(), Error> {
        let mut user = self.by_number.get_mut(tx, number).await?;
        let before = std::mem::replace(&mut user.city, name(city));
        drop(user); // now the transaction has the new value
        self.by_city.remove(tx, (before, number)).await?;
        self.by_city.insert(tx, (name(city), number), []).await
    }

    async fn who_lives_in(&self, tx: &mut Transaction<'_, '_>, city: &str) -> Result<Vec<u64>, Error> {
        let all = (name(city), 0)..=(name(city), u64::MAX);
        let found = self.by_city.scan(tx, all, usize::MAX).await?;
        Ok(found.into_iter().map(|((_, number), _)| number).collect())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::embedded().open()?;
    // Creates both tables, or none if this program dies in between.
    let users = cluster.create_together(|cluster| {
        Ok::<_, OpenError>(Users {
            by_number: cluster.create_table("users", TableOptions::for_rows(1000))?,
            by_city: cluster.create_ordered("users by city", OrderedOptions::for_rows(1000))?,
        })
    })?;
    let mut worker = cluster.worker(Default::default())?;
    let (bern, basel) = worker.block_on(async |session| {
        let fill = session.transact(async |tx| {
            for (number, city) in [(1, "Bern"), (2, "Basel"), (3, "Bern")] {
                users.add(tx, number, User { city: name(city), born: 1990 }).await?;
            }
            Ok(())
        });
        fill.await?;
        session.transact(async |tx| users.move_to(tx, 3, "Basel").await).await?;
        let look = session
            .transact(async |tx| Ok((users.who_lives_in(tx, "Bern").await?, users.who_lives_in(tx, "Basel").await?)));
        look.await
    })?;
    println!("Bern: {bern:?}, Basel: {basel:?}");
    assert_eq!((bern, basel), (vec![1], vec![2, 3]));
    Ok(())
}
