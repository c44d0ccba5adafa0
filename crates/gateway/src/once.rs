//! Commands that are applied at most once, however often a client sends them: `REMORA.ONCE`.
//!
//! A client that has lost its connection does not know whether its last command was applied. If it
//! has named the command by a token, it may send both again, to any gateway, and gets the reply
//! that it has missed.
//!
//! ```text
//! table NAME/once   token   ->   | expiry : 8 | digest of the commands : 32 | kind : 1 | reply |
//! ```
//!
//! # Rules
//!
//! 1. **One transaction applies the commands and inserts the token**, with the reply. So a token is
//!    there if and only if its commands were applied.
//! 2. **A transaction with a token reads the token's record before it does anything else.** So of
//!    two that have the same token and run at once, only one commits; the other one is tried again,
//!    and finds the token.
//! 3. **What applies nothing inserts no token:** a command that fails, and an `EXEC` that answers
//!    nil or rolls back. A client may send these again, and they may succeed then.
//! 4. **A token that has expired counts as absent.** The sweeper deletes it.

use remora::{Cluster, DynOptions, DynSchema, DynSlot, DynTable, Error, Intent, Lengths, OpenError, Session};
use remora::{Transaction, Walked};
use remora_redis::call::integer;
use remora_redis::{Command, Error as Told};
use remora_resp::{ReplyWriter, Version};
use sha2::{Digest, Sha256};

use crate::damaged::damaged;
use crate::options::StoreOptions;

/// Bytes of the longest token.
const TOKEN_BYTES_MAX: usize = 128;
/// Bytes of the longest reply that is kept.
const REPLY_BYTES_MAX: usize = 8 << 10;
/// Bytes of a token's record before the reply.
const HEAD_BYTES: usize = 8 + 32 + 1;
/// For how long a token is kept, in milliseconds, if the client does not say.
const LIFE: u64 = 60 * 60 * 1000;
/// The number of bytes of a token for which there is room at first, beyond its head.
const TOKEN_BYTES: u64 = 16;
/// The kind of a reply that was too long to keep.
const NOT_KEPT: u8 = 0;

/// A token that a client has named, for its next command.
#[derive(Debug)]
pub(crate) struct Once {
    token: Vec<u8>,
    /// For how long the token is kept, in milliseconds.
    life: u64,
}

/// A token, with the commands that it stands for.
#[derive(Debug)]
pub(crate) struct Claim {
    once: Once,
    /// The digest of all commands: that of the last one, with the digest of the commands before.
    digest: [u8; 32],
    version: Version,
}

/// What a transaction has found of a token.
pub(crate) enum Token {
    /// The commands were not applied yet.
    Unused(DynSlot),
    /// The token was used before, and the answer is written.
    Used {
        /// Whether it was used for these commands.
        is_ours: bool,
    },
}

/// The tokens of a store.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    table: DynTable,
}

impl Once {
    /// Reads the arguments of `REMORA.ONCE`.
    pub(crate) fn parse(args: &[&[u8]]) -> Result<Once, Told> {
        let life = match &args[2..] {
            [] => LIFE,
            [option, millis] if option.eq_ignore_ascii_case(b"px") => {
                let millis = u64::try_from(integer(millis)?).ok().filter(|millis| (1..=1 << 50).contains(millis));
                millis.ok_or(Told::expiry("remora.once"))?
            }
            _ => return Err(Told::SYNTAX),
        };
        let bytes = args[1].len();
        if !(1..=TOKEN_BYTES_MAX).contains(&bytes) {
            return Err(Told::of(format!("ERR token of {bytes} bytes (limit 1 to {TOKEN_BYTES_MAX})")));
        }
        Ok(Once { token: args[1].to_vec(), life })
    }
}

impl Claim {
    /// Begins with no command. Replies are written in this version of the protocol. A transaction
    /// of one command is not that command: its reply differs.
    pub(crate) fn new(once: Once, is_transaction: bool, version: Version) -> Claim {
        Claim { once, digest: [u8::from(is_transaction); 32], version }
    }

    /// Adds a command. Of one that may have a password, only the name counts.
    pub(crate) fn add(&mut self, command: &Command, database: u8, args: &[impl AsRef<[u8]>]) {
        let args = if command.has("no_auth") { &[] } else { &args[1..] };
        let mut digest = Sha256::new_with_prefix(self.digest);
        digest.update([database]);
        digest.update((args.len() as u64).to_le_bytes());
        for part in [command.name.as_bytes()].into_iter().chain(args.iter().map(AsRef::as_ref)) {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        self.digest = digest.finalize().into();
    }
}

impl Tokens {
    /// Opens the table of this name, or creates it.
    pub(crate) fn open_or_create(cluster: &Cluster, name: &str, options: &StoreOptions) -> Result<Tokens, OpenError> {
        let schema = DynSchema::new(
            "tokens of a gateway",
            Lengths::UpTo(TOKEN_BYTES_MAX),
            Lengths::UpTo(HEAD_BYTES + REPLY_BYTES_MAX),
        );
        let mut tokens = DynOptions::for_rows(options.tokens).bytes(options.tokens.saturating_mul(TOKEN_BYTES));
        if let Some(copies) = options.copies {
            tokens = tokens.replicas(copies);
        }
        Ok(Tokens { table: cluster.open_or_create_dyn_table(name, &schema, tokens)? })
    }

    /// Looks for the token of commands (rule 2). If it is there, writes the answer.
    pub(crate) async fn find(
        &self,
        tx: &mut Transaction<'_, '_>,
        claim: &Claim,
        now: u64,
        out: &mut Vec<u8>,
    ) -> Result<Token, Error> {
        let token = claim.once.token.as_slice();
        let slot = self.table.fetch_for(tx, [(token, Intent::Insert)]).await?.pop();
        let slot = slot.expect("one key was fetched");
        let Some(record) = self.table.value_of(tx, token, &slot)? else { return Ok(Token::Unused(slot)) };
        let record = Record::of(&record)?;
        if record.expiry <= now {
            return Ok(Token::Unused(slot));
        }
        let mut reply = ReplyWriter::new(out, claim.version);
        if record.digest != claim.digest {
            reply.error("ERR REMORA.ONCE token belongs to other commands");
            return Ok(Token::Used { is_ours: false });
        }
        match record.kind {
            NOT_KEPT => reply.error("ONCEDONE applied before; its reply was too long to keep"),
            kind if kind == kind_of(claim.version) => out.extend_from_slice(record.reply),
            _ => reply.error("ONCEDONE applied before; its reply is of the other version of the protocol"),
        }
        Ok(Token::Used { is_ours: true })
    }

    /// Inserts the token of commands that the transaction applies (rule 1), with their reply.
    pub(crate) async fn insert(
        &self,
        tx: &mut Transaction<'_, '_>,
        claim: &Claim,
        slot: DynSlot,
        now: u64,
        reply: &[u8],
    ) -> Result<(), Error> {
        let mut record = Vec::with_capacity(HEAD_BYTES + reply.len().min(REPLY_BYTES_MAX));
        record.extend((now + claim.once.life).to_le_bytes());
        record.extend(claim.digest);
        if reply.len() <= REPLY_BYTES_MAX {
            record.push(kind_of(claim.version));
            record.extend_from_slice(reply);
        } else {
            record.push(NOT_KEPT);
        }
        self.table.put_at(tx, &claim.once.token, slot, &record).await
    }

    /// Deletes the tokens of a step of a walk that have expired. Returns the next cursor.
    pub(crate) async fn sweep(&self, session: &mut Session, cursor: u64, slots: usize, now: u64) -> Result<u64, Error> {
        let Walked { rows, cursor } = self.table.walk(session, cursor, slots).await?;
        for (token, record) in rows {
            if Record::of(&record)?.expiry > now {
                continue;
            }
            let delete = async |tx: &mut Transaction<'_, '_>| {
                // The token may have been used again.
                if let Some(record) = self.table.get(tx, &token).await?
                    && Record::of(&record)?.expiry <= now
                {
                    self.table.remove(tx, &token).await?;
                }
                Ok(())
            };
            session.transact(delete).await?;
        }
        Ok(cursor)
    }
}

/// The record of a token, taken apart.
struct Record<'r> {
    /// When the token expires, in milliseconds since 1970.
    expiry: u64,
    digest: [u8; 32],
    kind: u8,
    reply: &'r [u8],
}

impl Record<'_> {
    fn of(bytes: &[u8]) -> Result<Record<'_>, Error> {
        let parts = || {
            let (expiry, rest) = bytes.split_first_chunk()?;
            let (digest, rest) = rest.split_first_chunk()?;
            let (kind, reply) = rest.split_first()?;
            Some(Record { expiry: u64::from_le_bytes(*expiry), digest: *digest, kind: *kind, reply })
        };
        parts().ok_or(damaged("the record of a token is too short"))
    }
}

/// Returns the kind of a reply that is kept.
fn kind_of(version: Version) -> u8 {
    match version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    }
}
