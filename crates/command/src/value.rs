//! The values of options: their parsers, and the messages by which a value is refused.

use std::path::Path;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use remora::connect::{Nodes, Place};
use remora::protocol::{Ford, Protocol};
use serde::{Serialize, Serializer};

/// Parses a number of bytes: `4096`, `64KiB`, `256M`, `2g`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{unit:?} is no unit of bytes: use KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| "a number of bytes is wanted, such as 256MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than there can be".to_owned())
}

/// Formats bytes as a person writes them.
pub fn show_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Parses a time in seconds, which must be more than 0. Clocks count nanoseconds in 64 bits, and
/// sums of times must fit.
pub fn seconds(text: &str) -> Result<f64, String> {
    const SECONDS_MAX: u64 = 1_000_000_000;
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && time <= Duration::from_secs(SECONDS_MAX) => Ok(seconds),
        _ => Err(format!("a number of seconds above 0 is wanted, and at most {SECONDS_MAX}")),
    }
}

/// Parses a share of a whole.
pub fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "a number from 0 to 1 is wanted".to_owned())
}

/// Parses the name of one of FORD's mechanisms.
pub fn ford_mechanism(text: &str) -> Result<String, String> {
    if Ford::MECHANISMS.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("FORD has no such mechanism; there are {}", Ford::MECHANISMS.join(", ")))
}

/// Returns the protocol of this name. If it is FORD, it is FORD without these mechanisms.
pub fn protocol_without(name: &str, mechanisms: &[String]) -> Protocol {
    match Protocol::named(name).unwrap_or_default() {
        Protocol::Ford(mut ford) => {
            for mechanism in mechanisms {
                let _known = ford.disable(mechanism);
            }
            Protocol::Ford(ford)
        }
        protocol => protocol,
    }
}

/// Returns the help of an option that takes a protocol. It has the names of all protocols that
/// promise transactions.
pub fn protocol_help() -> String {
    format!("How transactions are run: {}", serializable().collect::<Vec<_>>().join(", "))
}

/// Returns the names of all protocols that promise transactions, in the order of `Protocol::ALL`.
pub fn serializable() -> impl Iterator<Item = &'static str> {
    Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()).map(Protocol::name)
}

/// Parses the name of a protocol.
pub fn protocol(text: &str) -> Result<String, String> {
    match Protocol::named(text) {
        Some(protocol) => Ok(protocol.name().to_owned()),
        None => {
            let all = [&Protocol::ALL.map(Protocol::name)[..], &Protocol::STUDIES.map(Protocol::name)].concat();
            Err(format!("no such protocol; there are {}", all.join(", ")))
        }
    }
}

/// Parses the name of a backend.
pub fn fabric(text: &str) -> Result<String, String> {
    match text {
        "shm" | "tcp" | "verbs" | "sim" => Ok(text.to_owned()),
        _ => Err("no such fabric; there are shm, tcp, verbs and sim".to_owned()),
    }
}

/// Returns a parser of memory nodes: a list of addresses, or of paths, which need not be valid
/// UTF-8.
pub fn nodes() -> impl TypedValueParser<Value = Nodes> {
    OsStringValueParser::new().try_map(|text| Nodes::try_from(text.as_os_str()))
}

/// Returns a parser of the configuration's place: a path, which need not be valid UTF-8, or the
/// address of etcd.
pub fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text| Place::try_from(text.as_os_str()))
}

/// Writes a path into a report, where everything is text.
pub fn serialize_path<S: Serializer, P: AsRef<Path>>(path: &Option<P>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.as_ref().to_string_lossy()).serialize(serializer)
}

/// Writes the configuration's place into a report, as it is written on the command line.
pub fn serialize_place<S: Serializer>(place: &Option<Place>, serializer: S) -> Result<S::Ok, S::Error> {
    place.as_ref().map(Place::to_string).serialize(serializer)
}

/// Writes memory nodes into a report, as they are written on the command line.
pub fn serialize_nodes<S: Serializer>(nodes: &Option<Nodes>, serializer: S) -> Result<S::Ok, S::Error> {
    nodes.as_ref().map(Nodes::to_string).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64KiB"), Ok(64 << 10));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for bad in ["", "x", "1.5M", "-1", "1 parsec", "99999999999999999999", "99999999T"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!([5, 2048, 3 << 20, 5 << 30].map(show_bytes), ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]);
    }

    #[test]
    fn times_and_shares_are_in_range() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(["0", "-1", "nan", "inf", "1e10", "1e18", "1e300", "soon"].iter().all(|bad| seconds(bad).is_err()));
        assert_eq!(share("1"), Ok(1.0));
        assert!(["-0.1", "1.1", "nan", ""].iter().all(|bad| share(bad).is_err()));
    }
}
