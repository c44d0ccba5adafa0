//! Tests of conversations: two ends in virtual time, over a channel that loses, doubles and delays.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::prng::Prng;

/// Words that a datagram may carry.
const CARRIES: usize = 5;
/// Numbers of the two ends' queue pairs.
const NUMBERS: [u32; 2] = [17, 18];

/// One end, with the datagrams that a device would keep.
struct End {
    doors: Doors,
    place: usize,
    /// The token of the other end.
    to: u64,
    /// Datagrams of the stream, as they were first sent.
    slots: HashMap<u64, Vec<u64>>,
    to_write: VecDeque<u64>,
    read: Vec<u64>,
    /// Datagrams sent: new ones of the stream, repetitions, and ones that only acknowledge.
    sent: [u64; 3],
}

impl End {
    fn conversation(&mut self) -> &mut Conversation {
        self.doors.get(self.place).expect("an open door")
    }

    fn head(&mut self, sequence: u64) -> Vec<u64> {
        let to = self.to;
        self.conversation().head(to, sequence).to_vec()
    }
}

/// What may happen to a datagram: probabilities in percent, and the longest delay.
#[derive(Clone, Copy, Debug)]
struct Channel {
    lost: u64,
    doubled: u64,
    delay_max: Nanos,
}

struct World {
    ends: [End; 2],
    /// Datagrams under way, by arrival time and number, each with the end that gets it.
    under_way: BTreeMap<(Nanos, u64), (usize, Vec<u64>)>,
    channel: Channel,
    random: Prng,
    posted: u64,
    now: Nanos,
    /// The largest number of datagrams of one end that the other had not looked at.
    unseen_max: usize,
}

fn ends() -> [End; 2] {
    let mut tokens = [0; 2];
    let mut ends = [0, 1].map(|end| {
        let mut doors = Doors::default();
        doors.open(99); // another conversation's
        let (place, token) = doors.open(0x1234_5678_9abc + end as u64);
        doors.expect(place, NUMBERS[1 - end]);
        tokens[end] = token;
        let slots = HashMap::new();
        End { doors, place, to: 0, slots, to_write: VecDeque::new(), read: Vec::new(), sent: [0; 3] }
    });
    (ends[0].to, ends[1].to) = (tokens[1], tokens[0]);
    ends
}

impl World {
    fn new(seed: u64, channel: Channel) -> World {
        let (under_way, random) = (BTreeMap::new(), Prng::new(seed));
        World { ends: ends(), under_way, channel, random, posted: 0, now: 1, unseen_max: 0 }
    }

    fn post(&mut self, from: usize, words: &[u64]) {
        let fate = self.random.below(100);
        let copies = match fate {
            fate if fate < self.channel.lost => 0,
            fate if fate < self.channel.lost + self.channel.doubled => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.posted += 1;
            let at = self.now + 1 + self.random.below(self.channel.delay_max);
            self.under_way.insert((at, self.posted), (1 - from, words.to_vec()));
        }
    }

    /// Lets an end look at what has arrived, and send what it must.
    fn turn(&mut self, end: usize, idle: bool) {
        let now = self.now;
        let here: Vec<_> =
            self.under_way.iter().filter(|((at, _), (to, _))| *at <= now && *to == end).map(|(key, _)| *key).collect();
        self.unseen_max = self.unseen_max.max(here.len());
        for key in here {
            let (_, words) = self.under_way.remove(&key).expect("under way");
            let place = self.ends[end].place;
            assert_eq!(self.ends[end].doors.arrived(now, NUMBERS[1 - end], &words), Some(place));
        }
        let mut posts = Vec::new();
        let this = &mut self.ends[end];
        let mut bytes = [0; 8 * 7];
        loop {
            let count = this.conversation().read(&mut bytes);
            this.read.extend(bytes[..count].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("a word"))));
            if count == 0 {
                break;
            }
        }
        while !this.to_write.is_empty()
            && let Some(sequence) = this.conversation().next()
        {
            let mut words = this.head(sequence);
            words.extend(this.to_write.drain(..this.to_write.len().min(CARRIES)));
            this.conversation().sends(now);
            this.slots.insert(sequence, words.clone());
            this.sent[0] += 1;
            posts.push(words);
        }
        while let Some(sequence) = this.conversation().again(now) {
            this.sent[1] += 1;
            posts.push(this.slots[&sequence].clone());
        }
        if this.conversation().tells(now, idle) {
            this.sent[2] += 1;
            posts.push(this.head(0));
        }
        posts.iter().for_each(|words| self.post(end, words));
    }

    /// Lets time pass until everything has been read and acknowledged.
    fn run(&mut self) {
        for _ in 0..200_000 {
            (0..2).for_each(|end| self.turn(end, false));
            let dues = self.ends.iter_mut().filter_map(|end| end.conversation().due());
            let next = dues.chain(self.under_way.keys().map(|(at, _)| *at)).min();
            match next {
                Some(at) => self.now = self.now.max(at),
                None => return,
            }
        }
        panic!("it never comes to rest");
    }
}

fn stream(end: usize, words: usize) -> Vec<u64> {
    (0..words as u64).map(|word| word * 10 + end as u64).collect()
}

proptest! {
    /// Even if datagrams are lost, doubled and overtaken, each end reads what the other has
    /// written, every word once and in order.
    #[test]
    fn what_is_written_is_read_once_and_in_order(
        seed: u64,
        lost in 0..40u64,
        doubled in 0..40u64,
        delay_max in prop_oneof![1..1000u64, 1..20_000_000u64],
        words in prop::array::uniform2(0..1000usize),
    ) {
        let mut world = World::new(seed, Channel { lost, doubled, delay_max });
        for (end, words) in words.into_iter().enumerate() {
            world.ends[end].to_write = stream(end, words).into();
        }
        world.run();
        for end in 0..2 {
            prop_assert_eq!(&world.ends[end].read, &stream(1 - end, words[1 - end]));
            prop_assert_eq!(world.ends[end].doors.strange(), 0);
        }
    }

    /// Any words may arrive as a datagram: a conversation takes them or refuses them, and does not
    /// panic.
    #[test]
    fn any_words_are_survived(words: Vec<u64>, small in prop::collection::vec(0..40u64, 0..8), carried: Vec<u64>) {
        let [mut end, _] = ends();
        let (place, token) = (end.place, ends()[1].to);
        end.doors.arrived(1, NUMBERS[1], &words);
        let words: Vec<u64> = [token].into_iter().chain(small).chain(carried).collect();
        end.doors.arrived(2, NUMBERS[1], &words);
        prop_assert!(end.doors.get(place).is_some());
    }
}

const GOOD: Channel = Channel { lost: 0, doubled: 0, delay_max: 1000 };

/// Where nothing is lost, nothing is sent again. A datagram that is answered at once needs no
/// acknowledgement of its own.
#[test]
fn answers_acknowledge_questions() {
    let mut world = World::new(1, GOOD);
    for number in 0..50 {
        for end in 0..2 {
            world.ends[end].to_write.push_back(number);
            world.turn(end, false);
            world.now += 1000;
            world.turn(1 - end, false);
        }
    }
    assert_eq!(world.ends.each_ref().map(|end| end.sent), [[50, 0, 0]; 2]);
    world.run();
    assert_eq!(world.ends.each_ref().map(|end| end.sent[2]).iter().sum::<u64>(), 1, "the last one");
}

/// An end acknowledges what has arrived before it goes to sleep.
#[test]
fn an_end_tells_before_it_sleeps() {
    let mut world = World::new(1, GOOD);
    world.ends[0].to_write.push_back(1);
    world.turn(0, false);
    world.now += 1000;
    world.turn(1, false);
    assert_eq!(world.ends[1].sent, [0, 0, 0]);
    world.turn(1, true);
    assert_eq!(world.ends[1].sent, [0, 0, 1]);
    world.now += 1000;
    world.turn(0, false);
    assert_eq!(world.ends[0].conversation().resend_due(), None);
}

/// While an end looks at nothing, no more datagrams come for it than it has buffers.
#[test]
fn buffers_suffice_within_the_patience() {
    let mut world = World::new(1, GOOD);
    for end in 0..2 {
        world.ends[end].to_write = stream(end, 10_000).into();
    }
    world.turn(1, false);
    world.now += 1000;
    let deaf_until = world.now + crate::limits::PATIENCE_NS;
    while world.now < deaf_until {
        world.turn(0, true);
        world.now += 1_000_000;
    }
    assert_eq!(world.ends[0].sent[0], WINDOW, "a window");
    assert!(world.ends[0].sent[1] < 10, "the time between doubles: {:?}", world.ends[0].sent);
    world.run();
    assert!((WINDOW as usize + 1..=RECEIVES).contains(&world.unseen_max), "{} came at once", world.unseen_max);
    assert_eq!(world.ends[1].read, stream(0, 10_000));
}

/// A lost datagram is sent again when later ones have arrived, without waiting for the timeout; but
/// only once.
#[test]
fn what_is_overtaken_is_sent_again_at_once() {
    let mut world = World::new(1, Channel { delay_max: 1, ..GOOD });
    for _ in 0..3 {
        // The channel loses the first datagram each time it is sent.
        world.ends[0].to_write.extend([0; CARRIES * 4]);
        world.turn(0, false);
        world.under_way.retain(|_, (_, words)| words[1] != 1);
        world.now += 2;
        world.turn(1, false);
        world.now += 2;
    }
    world.turn(0, false);
    assert_eq!(world.ends[0].sent[..2], [12, 1]);
    assert!(world.now < RESEND_NS && world.ends[1].read.is_empty());
    world.run();
    assert_eq!((world.ends[0].sent[1], world.ends[1].read.len()), (2, CARRIES * 12));
}

/// An end acknowledges half a window at once, so that there is always room for the other half.
#[test]
fn half_a_window_is_acknowledged_at_once() {
    let mut world = World::new(1, Channel { delay_max: 1, ..GOOD });
    for (more, told) in [(WINDOW as usize / 2 - 1, 0), (1, 1), (1, 1)] {
        world.ends[0].to_write.extend(vec![0; CARRIES * more]);
        world.turn(0, false);
        world.now += 2;
        world.turn(1, false);
        assert_eq!(world.ends[1].sent[2], told);
    }
}

/// If a whole window is lost, only the oldest datagram is sent again after the timeout. When it is
/// acknowledged, all others are sent again at once.
#[test]
fn what_was_lost_with_the_oldest_is_sent_again_when_the_other_end_lives() {
    let mut world = World::new(1, Channel { delay_max: 1, ..GOOD });
    world.ends[0].to_write = stream(0, CARRIES * 8).into();
    world.turn(0, false);
    world.under_way.clear();
    for (later, sent_again) in [(RESEND_NS - 1, 0), (1, 1), (2, 1), (2 * RESEND_NS - 4, 1), (2, 2)] {
        world.now += later;
        world.turn(0, false);
        assert_eq!(world.ends[0].sent[1], sent_again);
    }
    world.now += 2;
    world.turn(1, true);
    world.now += 2;
    world.turn(0, false);
    assert_eq!(world.ends[0].sent[1], 2 + 7);
    world.run();
    assert_eq!((world.ends[0].sent[1], &world.ends[1].read), (9, &stream(0, CARRIES * 8)));
    // The next datagram starts with the first timeout again.
    world.ends[0].to_write.push_back(1);
    world.turn(0, false);
    assert_eq!(world.ends[0].conversation().resend_due(), Some(world.now + RESEND_NS));
}

/// Beyond a limit, an end refuses what it does not read. It takes that when it reads again.
#[test]
fn who_does_not_read_is_not_sent_more() {
    let [mut writer, mut reader] = ends();
    let (mut now, mut carried) = (1, 0);
    let datagram = vec![7; 400];
    while let Some(sequence) = writer.conversation().next() {
        let mut words = writer.head(sequence);
        words.extend(&datagram);
        writer.conversation().sends(now);
        reader.doors.arrived(now, NUMBERS[0], &words);
        let back = reader.head(0);
        writer.doors.arrived(now, NUMBERS[1], &back);
        now += 1;
        carried += datagram.len();
        assert!(carried < 2 * UNREAD_WORDS_MAX, "there is a limit");
    }
    assert_eq!(reader.conversation().unread.len(), UNREAD_WORDS_MAX.next_multiple_of(datagram.len()));
    let mut into = vec![0; 1 << 20];
    while reader.conversation().read(&mut into) > 0 {}
    let refused = writer.conversation().acknowledged;
    let again = writer.conversation().again(now + RESEND_NS);
    assert_eq!(again, Some(refused), "the first that was refused");
}

/// A datagram is dropped and counted if it has another token or another sender, or if its
/// conversation is over.
#[test]
fn what_is_nobodys_is_dropped_and_counted() {
    let [mut sender, mut receiver] = ends();
    let mut words = sender.head(1);
    words.push(5);
    let place = receiver.place;
    for wrong in [words[0] + 1, words[0] ^ 1 << DOOR_BITS, 0, u64::MAX] {
        let mut other = words.clone();
        other[0] = wrong;
        assert_eq!(receiver.doors.arrived(1, NUMBERS[0], &other), None);
    }
    assert_eq!(receiver.doors.arrived(1, NUMBERS[1], &words), None);
    assert_eq!(receiver.doors.arrived(1, NUMBERS[0], &[]), None);
    assert!(!receiver.conversation().has_more());
    assert_eq!(receiver.doors.arrived(1, NUMBERS[0], &words), Some(place));
    assert!(receiver.conversation().has_more());
    // The first client has been revoked, and another client has its place.
    receiver.doors.close(place);
    assert_eq!(receiver.doors.arrived(1, NUMBERS[0], &words), None);
    let (again, token) = receiver.doors.open(77);
    receiver.doors.expect(again, NUMBERS[0]);
    assert_eq!((again, receiver.doors.arrived(1, NUMBERS[0], &words)), (place, None));
    assert_ne!(token, words[0]);
    assert_eq!(receiver.doors.strange(), 8);
}

/// A datagram that no correct end would send is dropped, and changes nothing.
#[test]
fn what_cannot_be_is_dropped() {
    let [sender, mut receiver] = ends();
    let token = sender.to;
    let strange = [
        vec![token],
        vec![token, 0, 0, 0],
        vec![token, 0, 2, 0],
        vec![token, 0, 1, 1],
        vec![token, 0, u64::MAX, u64::MAX],
        vec![token, 0, 1, 0, 9],
        vec![token, 1, 1, 0],
        vec![token, 1 + WINDOW, 1, 0, 9],
        vec![token, u64::MAX, 1, 0, 9],
    ];
    for (number, words) in (1..).zip(&strange) {
        assert_eq!(receiver.doors.arrived(1, NUMBERS[0], words), None, "{words:?}");
        assert_eq!(receiver.doors.strange(), number);
    }
    assert_eq!((receiver.conversation().due(), receiver.conversation().has_more()), (None, false));
    assert_eq!(receiver.doors.arrived(1, NUMBERS[0], &[token, WINDOW, 1, 0, 9]), Some(receiver.place));
}
