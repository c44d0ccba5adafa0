//! The rows of TATP's tables: what they look like, how many there are, and what is in them at the
//! beginning.

use remora::Key;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Prng;
use crate::sizing::TableSize;

/// Digits of a subscriber's number and of the number that calls are forwarded to.
pub const NUMBER_DIGITS: usize = 15;
/// A telephone number, in ASCII digits.
pub type Digits = [u8; NUMBER_DIGITS];

/// Types of access information and of special facilities: 1 to 4.
pub const TYPES: u8 = 4;
/// When a call forwarding can begin.
pub const START_TIMES: [u8; 3] = [0, 8, 16];
/// A call forwarding's key: subscriber, type of the special facility, time at which it begins.
pub type ForwardingKey = (u32, u8, u8);

/// A subscriber; the key is its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Subscriber {
    /// From 1 on.
    pub s_id: u32,
    /// Where the mobile switching centre is.
    pub msc_location: u32,
    /// Where the visitor is.
    pub vlr_location: u32,
    /// `bit_1` to `bit_10`, from bit 0 on.
    pub bits: u16,
    /// `hex_1` to `hex_10`, two to a byte.
    pub hex: [u8; 5],
    /// `byte2_1` to `byte2_10`.
    pub byte2: [u8; 10],
    /// The id with leading zeros.
    pub sub_nbr: Digits,
}

/// The way from a subscriber's number, which is the key, to its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Number {
    /// The subscriber's id.
    pub s_id: u32,
    /// The key again.
    pub sub_nbr: Digits,
    /// To whole words of the alignment.
    pub spare: u8,
}

/// Access information of a subscriber; the key is the subscriber's id and the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct AccessInfo {
    /// The subscriber's id.
    pub s_id: u32,
    /// 1 to 4.
    pub ai_type: u8,
    /// Any byte.
    pub data1: u8,
    /// Any byte.
    pub data2: u8,
    /// Upper-case letters.
    pub data3: [u8; 3],
    /// Upper-case letters.
    pub data4: [u8; 5],
    /// To whole words of the alignment.
    pub spare: u8,
}

/// A special facility of a subscriber; the key is the subscriber's id and the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct SpecialFacility {
    /// The subscriber's id.
    pub s_id: u32,
    /// 1 to 4.
    pub sf_type: u8,
    /// 1 if it is, else 0.
    pub is_active: u8,
    /// Any byte.
    pub error_cntrl: u8,
    /// Any byte.
    pub data_a: u8,
    /// Upper-case letters.
    pub data_b: [u8; 5],
    /// To whole words of the alignment.
    pub spare: [u8; 3],
}

/// A call forwarding of a special facility; the key is [`ForwardingKey`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct CallForwarding {
    /// The subscriber's id.
    pub s_id: u32,
    /// The special facility's type.
    pub sf_type: u8,
    /// One of [`START_TIMES`].
    pub start_time: u8,
    /// 1 to 24.
    pub end_time: u8,
    /// Where calls go.
    pub numberx: Digits,
    /// To whole words of the alignment.
    pub spare: [u8; 2],
}

// Rows repeat their keys, as the specification's do: who walks a whole table sees rows only.
crate::rows::sizes! {
    Subscriber, 44;
    Number, 20;
    AccessInfo, 16;
    SpecialFacility, 16;
    CallForwarding, 24;
}

/// A number with leading zeros.
#[must_use]
pub fn digits(number: u64) -> Digits {
    let mut rest = number;
    let mut text = [b'0'; NUMBER_DIGITS];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// All rows of one subscriber, as they are loaded.
#[derive(Clone, Debug)]
pub(crate) struct Household {
    pub(crate) subscriber: Subscriber,
    pub(crate) access: Vec<AccessInfo>,
    pub(crate) facilities: Vec<SpecialFacility>,
    pub(crate) forwarding: Vec<CallForwarding>,
}

impl Household {
    /// That of a subscriber: always the same of the same seed.
    pub(crate) fn of(seed: u64, s_id: u32) -> Household {
        // The driver's streams have lower numbers.
        let random = &mut Prng::derive(seed, 1 << 40 | u64::from(s_id));
        let subscriber = Subscriber {
            s_id,
            msc_location: location(random),
            vlr_location: location(random),
            bits: random.below(1 << 10) as u16,
            hex: bytes(random),
            byte2: bytes(random),
            sub_nbr: digits(s_id.into()),
        };
        let access = some_of([1, 2, 3, 4], 1, random).map(|ai_type| AccessInfo {
            s_id,
            ai_type,
            data1: byte(random),
            data2: byte(random),
            data3: letters(random),
            data4: letters(random),
            spare: 0,
        });
        let access = access.collect();
        let facilities = some_of([1, 2, 3, 4], 1, random).map(|sf_type| SpecialFacility {
            s_id,
            sf_type,
            is_active: u8::from(random.below(100) < 85),
            error_cntrl: byte(random),
            data_a: byte(random),
            data_b: letters(random),
            spare: [0; 3],
        });
        let facilities: Vec<SpecialFacility> = facilities.collect();
        let mut forwarding = Vec::new();
        for facility in &facilities {
            forwarding.extend(some_of(START_TIMES, 0, random).map(|start_time| CallForwarding {
                s_id,
                sf_type: facility.sf_type,
                start_time,
                end_time: start_time + 1 + random.below(8) as u8,
                numberx: any_digits(random),
                spare: [0; 2],
            }));
        }
        Household { subscriber, access, facilities, forwarding }
    }
}

/// From `least` to all of these, each number as probable as the others, in their order.
fn some_of<const N: usize>(all: [u8; N], least: u64, random: &mut Prng) -> impl Iterator<Item = u8> + use<N> {
    let mut wanted = least + random.below(N as u64 + 1 - least);
    let mut chosen = [false; N];
    for (index, one) in chosen.iter_mut().enumerate() {
        *one = random.below((N - index) as u64) < wanted;
        wanted -= u64::from(*one);
    }
    all.into_iter().zip(chosen).filter_map(|(one, chosen)| chosen.then_some(one))
}

/// A location: any 32 bits but 0.
pub(crate) fn location(random: &mut Prng) -> u32 {
    1 + random.below(u64::from(u32::MAX)) as u32
}

/// Any number of fifteen digits.
pub(crate) fn any_digits(random: &mut Prng) -> Digits {
    digits(random.below(10_u64.pow(NUMBER_DIGITS as u32)))
}

fn byte(random: &mut Prng) -> u8 {
    random.below(256) as u8
}

fn bytes<const N: usize>(random: &mut Prng) -> [u8; N] {
    std::array::from_fn(|_| byte(random))
}

fn letters<const N: usize>(random: &mut Prng) -> [u8; N] {
    std::array::from_fn(|_| b'A' + random.below(26) as u8)
}

/// Rows that the tables are created for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacity {
    pub(crate) subscribers: u64,
    /// Access information, and special facilities.
    pub(crate) facilities: u64,
    pub(crate) forwarding: u64,
}

impl Capacity {
    /// Room for `subscribers` subscribers.
    ///
    /// Of access information and special facilities a subscriber has 2.5 on average, and their
    /// number is settled when they are loaded: six standard deviations more is enough.
    ///
    /// Call forwarding comes and goes. Where there is a special facility, each of its three rows is
    /// there half of the time: at the beginning by the specification, later because as many are
    /// inserted as deleted. Room is made for **all three**, although half would do for the records:
    /// in the index a chain of buckets only ever grows, so that in the long run it has as many as
    /// the keys need that were ever there together, which a table is sized for only if it is
    /// created for them all. And a fifth more, because an insert links a slot before it knows that
    /// there is no special facility.
    pub(crate) fn of(subscribers: u32) -> Capacity {
        /// For transactions in flight, where there are hardly any subscribers.
        const IN_FLIGHT: u64 = 64;
        let subscribers = u64::from(subscribers);
        let facilities = (subscribers * 5 / 2 + 7 * subscribers.isqrt() + 8).min(4 * subscribers);
        Capacity { subscribers, facilities, forwarding: 3 * facilities * 6 / 5 + IN_FLIGHT }
    }

    pub(crate) fn tables(&self) -> [TableSize; 5] {
        [
            TableSize::of::<u32, Subscriber>(self.subscribers),
            TableSize::of::<Digits, Number>(self.subscribers),
            TableSize::of::<(u32, u8), AccessInfo>(self.facilities),
            TableSize::of::<(u32, u8), SpecialFacility>(self.facilities),
            TableSize::of::<ForwardingKey, CallForwarding>(self.forwarding),
        ]
    }
}

const _: () = assert!(<Digits as Key>::BYTES == NUMBER_DIGITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_have_leading_zeros() {
        assert_eq!(&digits(42), b"000000000000042");
        assert_eq!(&digits(999_999_999_999_999), b"999999999999999");
    }

    #[test]
    fn the_population_is_the_specifications() {
        const SUBSCRIBERS: u32 = 40_000;
        let near = |count: usize, of: usize, share: f64| (count as f64 / of as f64 - share).abs() < 0.01;
        let (mut access, mut facilities, mut forwarding) = ([0; 5], [0; 5], [0; 4]);
        let (mut all_facilities, mut active, mut types) = (0, 0, [0; 5]);
        for s_id in 1..=SUBSCRIBERS {
            let household = Household::of(1, s_id);
            assert_eq!(household.subscriber.sub_nbr, digits(s_id.into()));
            access[household.access.len()] += 1;
            facilities[household.facilities.len()] += 1;
            all_facilities += household.facilities.len();
            assert!(household.access.is_sorted_by(|a, b| a.ai_type < b.ai_type), "no type twice");
            for facility in &household.facilities {
                let of_this = |row: &&CallForwarding| row.sf_type == facility.sf_type;
                let rows: Vec<_> = household.forwarding.iter().filter(of_this).collect();
                assert!(rows.is_sorted_by(|a, b| a.start_time < b.start_time), "no time twice");
                assert!(rows.iter().all(|row| (1..=8).contains(&(row.end_time - row.start_time))));
                forwarding[rows.len()] += 1;
                active += usize::from(facility.is_active);
                types[usize::from(facility.sf_type)] += 1;
            }
        }
        for count in 1..=4 {
            assert!(near(access[count], SUBSCRIBERS as usize, 0.25), "access_info: {access:?}");
            assert!(near(facilities[count], SUBSCRIBERS as usize, 0.25), "special_facility: {facilities:?}");
            assert!(near(types[count], all_facilities, 0.25), "types of special_facility: {types:?}");
        }
        assert!(forwarding.iter().all(|count| near(*count, all_facilities, 0.25)), "call_forwarding: {forwarding:?}");
        assert!(near(active, all_facilities, 0.85), "{active} of {all_facilities} are active");
        assert!(Capacity::of(SUBSCRIBERS).facilities > all_facilities as u64);
    }

    #[test]
    fn a_seed_is_a_population() {
        let rows = |seed, s_id| format!("{:?}", Household::of(seed, s_id));
        assert_eq!(rows(1, 7), rows(1, 7));
        assert_ne!(rows(1, 7), rows(2, 7));
    }

    #[test]
    fn there_is_room_for_what_can_be() {
        for subscribers in [1, 2, 10, 100] {
            let Capacity { facilities, forwarding, .. } = Capacity::of(subscribers);
            for seed in 0..50 {
                let households = (1..=subscribers).map(|s_id| Household::of(seed, s_id));
                let found: u64 = households.map(|household| household.facilities.len() as u64).sum();
                assert!(found <= facilities && 3 * found < forwarding, "{subscribers} subscribers of seed {seed}");
            }
        }
        assert_eq!(Capacity::of(1).facilities, 4);
        // The largest population there can be does not overflow.
        assert!(Capacity::of(u32::MAX).forwarding > u64::from(u32::MAX) * 9);
    }
}
