//! The rows of TATP's tables: their types, their number, and their first contents.

use remora::Key;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Prng;
use crate::sizing::TableSize;

/// Digits of a subscriber's number, and of the number to which calls are forwarded.
pub const NUMBER_DIGITS: usize = 15;
/// A telephone number, in ASCII digits.
pub type Digits = [u8; NUMBER_DIGITS];

/// The number of types of access information and of special facilities. Types are 1 to 4.
pub const TYPES: u8 = 4;
/// The times at which a call forwarding can begin.
pub const START_TIMES: [u8; 3] = [0, 8, 16];
/// The key of a call forwarding: subscriber, type of the special facility, time at which it begins.
pub type ForwardingKey = (u32, u8, u8);

/// A subscriber. The key is the subscriber's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Subscriber {
    /// The subscriber's id, counted from 1.
    pub s_id: u32,
    /// The location of the mobile switching centre.
    pub msc_location: u32,
    /// The location of the visitor.
    pub vlr_location: u32,
    /// `bit_1` to `bit_10`, from bit 0 on.
    pub bits: u16,
    /// `hex_1` to `hex_10`, two in each byte.
    pub hex: [u8; 5],
    /// `byte2_1` to `byte2_10`.
    pub byte2: [u8; 10],
    /// The subscriber's number: the id with leading zeros.
    pub sub_nbr: Digits,
}

/// A row that leads from a subscriber's number, which is the key, to the subscriber's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Number {
    /// The subscriber's id.
    pub s_id: u32,
    /// The number again.
    pub sub_nbr: Digits,
    /// Padding to the type's alignment.
    pub spare: u8,
}

/// Access information of a subscriber. The key is the subscriber's id and the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct AccessInfo {
    /// The subscriber's id.
    pub s_id: u32,
    /// The type of the access information, 1 to 4.
    pub ai_type: u8,
    /// Any byte.
    pub data1: u8,
    /// Any byte.
    pub data2: u8,
    /// Upper-case letters.
    pub data3: [u8; 3],
    /// Upper-case letters.
    pub data4: [u8; 5],
    /// Padding to the type's alignment.
    pub spare: u8,
}

/// A special facility of a subscriber. The key is the subscriber's id and the type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct SpecialFacility {
    /// The subscriber's id.
    pub s_id: u32,
    /// The type of the special facility, 1 to 4.
    pub sf_type: u8,
    /// 1 if the facility is active, else 0.
    pub is_active: u8,
    /// Any byte.
    pub error_cntrl: u8,
    /// Any byte.
    pub data_a: u8,
    /// Upper-case letters.
    pub data_b: [u8; 5],
    /// Padding to the type's alignment.
    pub spare: [u8; 3],
}

/// A call forwarding of a special facility. The key is [`ForwardingKey`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct CallForwarding {
    /// The subscriber's id.
    pub s_id: u32,
    /// The special facility's type.
    pub sf_type: u8,
    /// The time at which the forwarding begins, one of [`START_TIMES`].
    pub start_time: u8,
    /// The time at which the forwarding ends, 1 to 24.
    pub end_time: u8,
    /// The number to which calls are forwarded.
    pub numberx: Digits,
    /// Padding to the type's alignment.
    pub spare: [u8; 2],
}

// Rows repeat their keys, as in the specification, because a walk over a whole table sees rows
// only.
crate::rows::sizes! {
    Subscriber, 44;
    Number, 20;
    AccessInfo, 16;
    SpecialFacility, 16;
    CallForwarding, 24;
}

/// Returns a number as digits, with leading zeros.
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
    /// Makes the rows of a subscriber. One seed always gives the same rows.
    pub(crate) fn of(seed: u64, s_id: u32) -> Household {
        // The streams of the driver have lower numbers.
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

/// Returns at least `least` of these values, in their order. Each count is equally probable.
fn some_of<const N: usize>(all: [u8; N], least: u64, random: &mut Prng) -> impl Iterator<Item = u8> + use<N> {
    let mut wanted = least + random.below(N as u64 + 1 - least);
    let mut chosen = [false; N];
    for (index, one) in chosen.iter_mut().enumerate() {
        *one = random.below((N - index) as u64) < wanted;
        wanted -= u64::from(*one);
    }
    all.into_iter().zip(chosen).filter_map(|(one, chosen)| chosen.then_some(one))
}

/// Draws a location: any 32 bits but 0.
pub(crate) fn location(random: &mut Prng) -> u32 {
    1 + random.below(u64::from(u32::MAX)) as u32
}

/// Draws any number of fifteen digits.
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

/// The numbers of rows that the tables are created for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacity {
    pub(crate) subscribers: u64,
    /// Rows of access information, and of special facilities.
    pub(crate) facilities: u64,
    pub(crate) forwarding: u64,
}

impl Capacity {
    /// Returns the room for `subscribers` subscribers.
    ///
    /// A subscriber has on average 2.5 rows of access information, and 2.5 of special facilities.
    /// Their number does not change after loading, so six standard deviations more is enough.
    ///
    /// Rows of call forwarding come and go. A special facility has three of them, each of which is
    /// present half of the time. That is so at the beginning by the specification, and later
    /// because as many are inserted as deleted.
    ///
    /// There is room for **all three**, although half of it would suffice for the records. The
    /// reason is the index: a chain of buckets only ever grows. In the long run it has as many
    /// buckets as all keys need that were ever present together. A table is sized for that only if
    /// it is created for all keys. A fifth more is added, because an insert links a slot before it
    /// knows that the special facility does not exist.
    pub(crate) fn of(subscribers: u32) -> Capacity {
        /// Rows for transactions in flight, which matter if there are hardly any subscribers.
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
        // The largest possible population does not overflow.
        assert!(Capacity::of(u32::MAX).forwarding > u64::from(u32::MAX) * 9);
    }
}
