//! The text form of profiles: the profiles that come with the simulator, and the parser for these
//! and others.
//!
//! A wrong number in a profile would give plausible nonsense and no error. So a text is refused
//! unless it has every key, no other key, and only values that make sense. A refusal is one line,
//! which names the key and its place.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path as FilePath, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::profile::{Calls, Clock, Cpu, Machine, Medium, Nic, Path, Profile, Switch};

/// The text of each profile that comes with the simulator, by name.
const SHIPPED: [(&str, &str); 8] = [
    ("connectx3", include_str!("../../../../profiles/connectx3.toml")),
    ("connectx4", include_str!("../../../../profiles/connectx4.toml")),
    ("connectx5", include_str!("../../../../profiles/connectx5.toml")),
    ("connectx5-switch", include_str!("../../../../profiles/connectx5-switch.toml")),
    ("r74v", include_str!("../../../../profiles/r74v.toml")),
    ("ethernet10g", include_str!("../../../../profiles/ethernet10g.toml")),
    ("efa", include_str!("../../../../profiles/efa.toml")),
    ("cxl", include_str!("../../../../profiles/cxl.toml")),
];

/// The longest time that a profile may have. It is far above any hardware, and small enough that
/// sums of such times cannot overflow the simulator's clock.
const LONGEST_NS: f64 = 1e11;

/// The reason why a text or file is not a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The text is not a profile.
    #[error("{}{field}: {reason}", Place(path.as_deref(), *line))]
    Refused {
        /// The path of the file, if the text came from one.
        path: Option<PathBuf>,
        /// The line, counted from 1, of the key, or of the table that lacks it. `None` if there is
        /// no such line.
        line: Option<usize>,
        /// The key with its tables, as in `nic.link_gb_s`. It is `profile` for the text as a whole.
        field: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// The place in front of a message: `file:3: `, `line 3: ` or nothing.
struct Place<'a>(Option<&'a FilePath>, Option<usize>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Place(Some(path), Some(line)) => write!(f, "{}:{line}: ", path.display()),
            Place(Some(path), None) => write!(f, "{}: ", path.display()),
            Place(None, Some(line)) => write!(f, "line {line}: "),
            Place(None, None) => Ok(()),
        }
    }
}

impl Profile {
    /// The names of the profiles that come with the simulator.
    pub const NAMES: &[&str] = &{
        let mut names = [""; SHIPPED.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = SHIPPED[at].0;
            at += 1;
        }
        names
    };

    /// Returns the text of a profile that comes with the simulator. The comments in it say where
    /// its numbers come from.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text)
    }

    /// Finds a profile that comes with the simulator by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Profile> {
        let text = Profile::text(name)?;
        Some(Profile::parse(text).unwrap_or_else(|error| panic!("the shipped profile {name}: {error}")))
    }

    /// Reads a profile from TOML.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Refused`] if the text is not TOML, lacks a key, has one that a profile does
    /// not have, or gives one a value that no hardware can have.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            let field = at.and_then(|at| key_at(text, at)).unwrap_or_else(|| "profile".to_owned());
            // The parser's messages may have a second line, which says what was expected.
            let reason = error.message().trim().replace('\n', ", ");
            ProfileError::Refused { path: None, line: at.map(|at| line_of(text, at)), field, reason }
        })?;
        check(&profile).map_err(|Wrong { field, reason }| {
            let line = line_of_key(text, &field);
            ProfileError::Refused { path: None, line, field, reason }
        })?;
        Ok(profile)
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Unreadable`] if the file cannot be read; otherwise as
    /// [`parse`](Profile::parse), with the file's name.
    pub fn read(path: impl AsRef<FilePath>) -> Result<Profile, ProfileError> {
        let path = path.as_ref();
        let text =
            fs::read_to_string(path).map_err(|source| ProfileError::Unreadable { path: path.to_owned(), source })?;
        Profile::parse(&text).map_err(|error| match error {
            ProfileError::Refused { line, field, reason, .. } => {
                ProfileError::Refused { path: Some(path.to_owned()), line, field, reason }
            }
            unreadable @ ProfileError::Unreadable { .. } => unreadable,
        })
    }
}

impl Profile {
    /// Writes the profile as TOML, which [`parse`](Profile::parse) reads. The comment on the line
    /// of a key is what `source` returns for the key (such as `nic.link_gb_s`). `source` is not
    /// asked about `name` and `about`, which become one line each.
    #[must_use]
    pub fn to_toml(&self, source: impl Fn(&str) -> String) -> String {
        let one_line = |text: &str| text.replace(['\r', '\n'], " ");
        let lines = Profile { name: one_line(&self.name), about: one_line(&self.about), ..self.clone() };
        let plain = toml::to_string(&lines).unwrap_or_else(|error| panic!("a profile is tables of values: {error}"));
        let mut text = String::with_capacity(4 * plain.len());
        let mut table = String::new();
        for line in plain.lines() {
            text += line;
            if let Some(header) = line.strip_prefix('[') {
                table = format!("{}.", header.trim_end_matches(']'));
            } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !UNSOURCED.contains(key)) {
                text += &format!(" # {}", one_line(&source(&format!("{table}{key}"))));
            }
            text.push('\n');
        }
        text
    }
}

/// Keys that make no claim about hardware, and so need no source.
const UNSOURCED: [&str; 2] = ["name", "about"];

/// A key and what is wrong with its value.
struct Wrong {
    field: String,
    reason: String,
}

fn wrong(field: &str, reason: String) -> Result<(), Wrong> {
    Err(Wrong { field: field.to_owned(), reason })
}

/// Checks all keys. It destructures the struct without `..`, so a new key that it does not check
/// fails to compile.
fn check(profile: &Profile) -> Result<(), Wrong> {
    let Profile {
        name,
        about: _,
        path,
        coherent_atomics,
        whole_lines,
        atomic_writes,
        machine,
        nic,
        cpu,
        calls,
        switch,
        clock,
        media,
    } = profile;
    if name.is_empty() {
        wrong("name", "is empty, expected the profile's name".to_owned())?;
    }
    check_machine(machine)?;
    check_nic(nic)?;
    check_cpu(cpu)?;
    check_calls(calls)?;
    switch.as_ref().map_or(Ok(()), check_switch)?;
    check_clock(clock)?;
    if !media.contains_key("dram") {
        wrong("media", "has no `dram`, expected a table `media.dram`".to_owned())?;
    }
    media.iter().try_for_each(|(name, medium)| check_medium(name, medium))?;
    let no_card = "no card promises it; a run may assume it";
    for (key, is_promised, why) in [
        ("coherent_atomics", *coherent_atomics, "a NIC's atomics exclude each other, not the CPU"),
        ("whole_lines", *whole_lines, no_card),
        ("atomic_writes", *atomic_writes, no_card),
    ] {
        if is_promised && *path == Path::Nic {
            wrong(key, format!("is true, expected false where path is \"nic\": {why}"))?;
        }
    }
    check_calls_return(nic, calls)?;
    switch.as_ref().map_or(Ok(()), |switch| check_switch_is_on_the_way(switch, nic))
}

/// Checks that a client does not send a call again before the first answer can have come.
fn check_calls_return(nic: &Nic, calls: &Calls) -> Result<(), Wrong> {
    let least = 2.0 * nic.wire_ns + calls.serve_ns;
    if calls.resend_ns > least {
        return Ok(());
    }
    let resend = calls.resend_ns;
    let reason = format!("is {resend}, expected more than 2 x nic.wire_ns + calls.serve_ns, which is {least}");
    wrong("calls.resend_ns", reason)
}

/// Checks that the way to the switch is a part of the way to the memory node.
fn check_switch_is_on_the_way(switch: &Switch, nic: &Nic) -> Result<(), Wrong> {
    if switch.wire_ns <= nic.wire_ns {
        return Ok(());
    }
    wrong("switch.wire_ns", format!("is {}, expected at most nic.wire_ns, which is {}", switch.wire_ns, nic.wire_ns))
}

/// Checks several values by the names of their variables.
macro_rules! each {
    ($check:ident in $table:expr; $($field:ident),+ $(,)?) => {
        $($check(&format!("{}.{}", $table, stringify!($field)), *$field)?;)+
    };
}

fn check_machine(machine: &Machine) -> Result<(), Wrong> {
    let Machine { nics, threads, server_threads } = machine;
    each!(at_least_one in "machine"; nics, threads, server_threads);
    Ok(())
}

fn check_nic(nic: &Nic) -> Result<(), Wrong> {
    let Nic {
        link_gb_s,
        pcie_gb_s,
        wire_ns,
        send_ns,
        fetch_ns,
        inline_bytes: _,
        receive_ns,
        dma_read_ns,
        dma_write_ns,
        completion_ns,
        flush_ns,
        request_ns,
        connection_ns,
        read_ns,
        write_ns,
        atomic_ns,
        header_bytes: _,
        packet_bytes,
        atomic_slots,
        atomic_slot_shift,
        atomic_slot_ns,
        cached_connections: _,
        miss_ns,
    } = nic;
    each!(bandwidth in "nic"; link_gb_s, pcie_gb_s);
    each!(time in "nic"; wire_ns, send_ns, fetch_ns, receive_ns, dma_read_ns, dma_write_ns, completion_ns, flush_ns);
    each!(time in "nic"; request_ns, connection_ns, read_ns, write_ns, atomic_ns, atomic_slot_ns, miss_ns);
    each!(at_least_one in "nic"; packet_bytes);
    each!(power_of_two in "nic"; atomic_slots);
    if *atomic_slot_shift >= u64::BITS {
        wrong("nic.atomic_slot_shift", format!("is {atomic_slot_shift}, expected a bit of an address, below 64"))?;
    }
    Ok(())
}

fn check_cpu(cpu: &Cpu) -> Result<(), Wrong> {
    let Cpu { doorbell_ns, post_ns, poll_ns, switch_ns, .. } = cpu;
    let Cpu { transaction_ns, execution_ns, validation_ns, logging_ns, commit_ns, .. } = cpu;
    each!(time in "cpu"; doorbell_ns, post_ns, poll_ns, switch_ns);
    each!(time in "cpu"; transaction_ns, execution_ns, validation_ns, logging_ns, commit_ns);
    Ok(())
}

fn check_calls(calls: &Calls) -> Result<(), Wrong> {
    let Calls { message_ns, post_ns, next_ns, poll_ns, serve_ns, word_ns, resend_ns } = calls;
    each!(time in "calls"; message_ns, post_ns, next_ns, poll_ns, serve_ns, word_ns, resend_ns);
    if *resend_ns == 0.0 {
        wrong("calls.resend_ns", "is 0, expected a time above 0: calls would be sent again for ever".to_owned())?;
    }
    Ok(())
}

fn check_switch(switch: &Switch) -> Result<(), Wrong> {
    let Switch { wire_ns, serve_ns } = switch;
    each!(time in "switch"; wire_ns, serve_ns);
    Ok(())
}

fn check_clock(clock: &Clock) -> Result<(), Wrong> {
    let Clock { offset_ns, drift_ppm } = clock;
    each!(time in "clock"; offset_ns);
    if !(0.0..1e6).contains(drift_ppm) {
        wrong("clock.drift_ppm", format!("is {drift_ppm}, expected millionths from 0 to below 1000000"))?;
    }
    Ok(())
}

fn check_medium(name: &str, medium: &Medium) -> Result<(), Wrong> {
    let Medium {
        persistent,
        caches_persistent,
        read_ns,
        line_bytes,
        unit_bytes,
        line_write_ns,
        line_read_ns,
        write_ns,
        partial_ns,
        ddio_amplification,
        cross_socket,
    } = medium;
    let table = format!("media.{name}");
    each!(time in table; read_ns, line_write_ns, line_read_ns, write_ns, partial_ns);
    each!(power_of_two in table; line_bytes, unit_bytes);
    each!(factor in table; ddio_amplification, cross_socket);
    if unit_bytes > line_bytes {
        let reason = format!("is {unit_bytes}, expected at most line_bytes, which is {line_bytes}");
        wrong(&format!("{table}.unit_bytes"), reason)?;
    }
    if *caches_persistent && !persistent {
        let reason = "is true, expected false where the memory itself is not persistent".to_owned();
        wrong(&format!("{table}.caches_persistent"), reason)?;
    }
    Ok(())
}

/// Checks a time. NaN fails every comparison, so each check says what is allowed.
fn time(field: &str, ns: f64) -> Result<(), Wrong> {
    if (0.0..=LONGEST_NS).contains(&ns) {
        return Ok(());
    }
    wrong(field, format!("is {ns}, expected nanoseconds from 0 to {LONGEST_NS}"))
}

fn bandwidth(field: &str, gb_s: f64) -> Result<(), Wrong> {
    if gb_s > 0.0 && gb_s.is_finite() {
        return Ok(());
    }
    wrong(field, format!("is {gb_s}, expected gigabytes per second above 0"))
}

fn factor(field: &str, factor: f64) -> Result<(), Wrong> {
    if factor >= 1.0 && factor.is_finite() {
        return Ok(());
    }
    wrong(field, format!("is {factor}, expected a factor of 1 or more"))
}

fn at_least_one(field: &str, number: u32) -> Result<(), Wrong> {
    if number > 0 {
        return Ok(());
    }
    wrong(field, format!("is {number}, expected 1 or more"))
}

fn power_of_two(field: &str, number: u32) -> Result<(), Wrong> {
    if number.is_power_of_two() {
        return Ok(());
    }
    wrong(field, format!("is {number}, expected a power of two"))
}

/// Returns the line, counted from 1, of a byte of the text.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

/// Returns the key, with its tables, whose text contains this byte: in the key itself, in its
/// value, or in the header of its table.
fn key_at(text: &str, at: usize) -> Option<String> {
    fn within(table: &DeTable<'_>, at: usize) -> Option<String> {
        table.iter().find_map(|(key, value)| {
            let name = key.get_ref();
            // The innermost table comes first. The span of a table does not contain the lines below
            // its header.
            let inner = if let DeValue::Table(inner) = value.get_ref() { within(inner, at) } else { None };
            match inner {
                Some(inner) => Some(format!("{name}.{inner}")),
                None => (holds(key, at) || holds(value, at)).then(|| name.to_string()),
            }
        })
    }
    within(DeTable::parse(text).ok()?.get_ref(), at)
}

fn holds<T>(spanned: &Spanned<T>, at: usize) -> bool {
    spanned.span().contains(&at)
}

/// Returns the line of a key, or the line of the innermost of its tables that exists.
fn line_of_key(text: &str, field: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let (mut table, mut line) = (root.get_ref(), None);
    for part in field.split('.') {
        let Some((key, value)) = table.get_key_value(part) else { break };
        line = Some(line_of(text, key.span().start));
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(name: &str) -> &'static str {
        Profile::text(name).unwrap()
    }

    /// Returns the text of the profile of ConnectX-4, with the first line of a key in a table
    /// replaced.
    fn with(table: &str, key: &str, line: &str) -> String {
        let (mut inside, mut replaced) = (table.is_empty(), false);
        let mut text = String::new();
        for old in shipped("connectx4").lines() {
            if old.starts_with('[') {
                inside = old == format!("[{table}]");
            }
            let this = inside && !replaced && old.split('=').next().unwrap().trim() == key;
            replaced |= this;
            text += if this { line } else { old };
            text.push('\n');
        }
        assert!(replaced, "[{table}] {key}");
        text
    }

    /// Returns the refusal of a text, which must be one line.
    #[track_caller]
    fn refused(text: &str) -> String {
        let said = Profile::parse(text).expect_err("refused").to_string();
        assert!(!said.contains('\n'), "{said}");
        said
    }

    #[test]
    fn every_shipped_profile_parses_and_bears_its_files_name() {
        assert_eq!(Profile::NAMES.len(), SHIPPED.len());
        for (name, text) in SHIPPED {
            let profile = Profile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(profile.name, name);
            assert_eq!(Profile::named(name), Some(profile));
        }
        assert_eq!(Profile::named("connectx9"), None);
    }

    #[test]
    fn every_number_of_a_shipped_profile_has_its_source() {
        for (name, text) in SHIPPED {
            for (at, line) in
                text.lines().enumerate().filter(|(_, line)| !line.starts_with(['#', '[']) && !line.is_empty())
            {
                let bare = UNSOURCED.iter().any(|key| line.starts_with(&format!("{key} ")));
                let sourced = line.split_once(" # ").is_some_and(|(_, source)| source.len() > 8);
                assert!(bare || sourced, "{name}.toml:{}: no source: {line}", at + 1);
            }
        }
    }

    #[test]
    fn a_profile_that_is_written_is_read_as_it_was_with_a_source_on_every_line() {
        for (name, _) in SHIPPED {
            let profile = Profile { about: "\"a\" # [b] = c".to_owned(), ..Profile::named(name).unwrap() };
            let text = profile.to_toml(|key| format!("source of {key}\n, two lines"));
            assert_eq!(Profile::parse(&text).unwrap(), profile);
            for line in
                ["[nic]", "source of nic.link_gb_s , two lines", "source of media.dram.read_ns ", "source of path "]
            {
                assert!(text.contains(line), "{line}: {text}");
            }
            let values = text.lines().filter(|line| line.contains(" = ")).count();
            assert_eq!(text.matches(" # source of ").count() + UNSOURCED.len(), values, "{text}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_shipped() {
        let folder = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
        let mut found: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter_map(|file| Some(file.strip_suffix(".toml")?.to_owned()))
            .collect();
        let mut named = Profile::NAMES.to_vec();
        found.sort();
        named.sort_unstable();
        assert_eq!(found, named);
    }

    #[test]
    fn unknown_keys_are_refused() {
        let said = refused(&with("nic", "wire_ns", "wyre_ns = 1.0"));
        assert!(said.contains("nic.wyre_ns: unknown field `wyre_ns`, expected one of `link_gb_s`"), "{said}");
        assert!(said.starts_with("line "), "{said}");
        let said = refused(&with("", "path", "path = \"pigeon\""));
        assert!(said.contains("path: unknown variant `pigeon`, expected one of `nic`, `messages`, `loads`"), "{said}");
        let said = refused(&with("media.dram", "line_bytes", "line = 64"));
        assert!(said.contains("media.dram.line: unknown field `line`"), "{said}");
    }

    #[test]
    fn missing_keys_are_refused() {
        for (table, key) in
            [("nic", "wire_ns"), ("cpu", "post_ns"), ("calls", "word_ns"), ("media.dram", "cross_socket")]
        {
            let said = refused(&with(table, key, ""));
            assert!(said.contains(&format!("{table}: missing field `{key}`")), "{said}");
        }
        for key in ["coherent_atomics", "whole_lines", "atomic_writes"] {
            let said = refused(&with("", key, ""));
            assert!(said.contains(&format!("profile: missing field `{key}`")), "{said}");
        }
        assert!(refused("").contains("missing field `name`"));
    }

    #[test]
    fn dram_must_be_there() {
        let said = refused(&shipped("connectx4").replace("[media.dram]", "[media.sram]"));
        assert!(said.ends_with("media: has no `dram`, expected a table `media.dram`"), "{said}");
    }

    #[test]
    fn what_no_hardware_can_be_is_refused_by_name_and_line() {
        for (table, key, value, why) in [
            ("nic", "wire_ns", "-1.0", "is -1, expected nanoseconds"),
            ("nic", "wire_ns", "nan", "is NaN, expected nanoseconds"),
            ("cpu", "doorbell_ns", "inf", "is inf, expected nanoseconds"),
            ("calls", "serve_ns", "-3", "is -3, expected nanoseconds"),
            ("calls", "resend_ns", "0", "is 0, expected a time above 0"),
            ("nic", "link_gb_s", "0.0", "is 0, expected gigabytes per second above 0"),
            ("nic", "pcie_gb_s", "nan", "is NaN, expected gigabytes per second above 0"),
            ("nic", "inline_bytes", "-64", "invalid value: integer `-64`, expected u32"),
            ("nic", "read_ns", "\"fast\"", "invalid type: string \"fast\", expected f64"),
            ("nic", "packet_bytes", "0", "is 0, expected 1 or more"),
            ("nic", "atomic_slots", "500", "is 500, expected a power of two"),
            ("nic", "atomic_slots", "0", "is 0, expected a power of two"),
            ("nic", "atomic_slot_shift", "64", "is 64, expected a bit of an address"),
            ("machine", "nics", "0", "is 0, expected 1 or more"),
            ("clock", "drift_ppm", "-1", "is -1, expected millionths"),
            ("media.dram", "unit_bytes", "48", "is 48, expected a power of two"),
            ("media.dram", "unit_bytes", "128", "is 128, expected at most line_bytes, which is 64"),
            ("media.dram", "caches_persistent", "true", "expected false where the memory itself is not persistent"),
            ("media.optane", "cross_socket", "0.5", "is 0.5, expected a factor of 1 or more"),
            ("media.optane", "partial_ns", "-0.5", "is -0.5, expected nanoseconds"),
        ] {
            let text = with(table, key, &format!("{key} = {value}"));
            let line = 1 + text.lines().position(|line| line == format!("{key} = {value}")).unwrap();
            let said = refused(&text);
            assert!(said.starts_with(&format!("line {line}: {table}.{key}: ")), "{said}");
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn what_is_not_toml_is_refused_in_one_line() {
        for text in ["name = ", "[nic", "name = \"a\"\nname = \"b\"", "\u{0}"] {
            assert!(refused(text).starts_with("line "), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn a_file_is_named_in_what_is_said_of_it() {
        let missing = FilePath::new("no-such-folder").join("mine.toml");
        let error = Profile::read(&missing).unwrap_err();
        assert!(matches!(error, ProfileError::Unreadable { .. }));
        assert!(error.to_string().starts_with("no-such-folder"), "{error}");
        let manifest = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let said = Profile::read(&manifest).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{}:", manifest.display())), "{said}");
    }
}
