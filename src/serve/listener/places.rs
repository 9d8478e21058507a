//! Places for connections: so many in all, a reserve beyond them, and so many from one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use crate::runtime::metric;

use super::settings::ListenerSettings;

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    connections_max: u32,
    reserve_max: u32,
    per_address_max: Option<u32>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    usual: u32,
    reserve: u32,
    by_address: HashMap<IpAddr, u32>,
}

/// Which of a full service's places a connection has; in the extensions of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// One for everybody.
    Usual,
    /// One of the reserve, for a single request: routes decide which they answer there.
    Reserve,
}

/// Which bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    All,
    Address,
}

impl Full {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::All => "at once",
            Self::Address => "at once from one address",
        }
    }

    /// The word for the metric's label.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::All => "connections",
            Self::Address => "address",
        }
    }
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    pub(super) seat: Seat,
}

impl Taken {
    fn show(&self) {
        metric::set(metric::CONNECTIONS, Vec::new(), self.usual.saturating_add(self.reserve).into());
    }
}

impl Places {
    pub(super) fn new(settings: &ListenerSettings) -> Arc<Self> {
        Arc::new(Self {
            connections_max: settings.connections_max,
            reserve_max: settings.reserve_max,
            per_address_max: settings.connections_per_address_max,
            taken: Mutex::default(),
        })
    }

    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let seat = match *taken {
            Taken { usual, .. } if usual < self.connections_max => Seat::Usual,
            Taken { reserve, .. } if reserve < self.reserve_max => Seat::Reserve,
            _ => return Err(Full::All),
        };
        // Counted only where it is bounded: addresses are the outside's to choose.
        if let Some(max) = self.per_address_max {
            let own = taken.by_address.entry(address).or_default();
            if *own >= max {
                return Err(Full::Address);
            }
            *own += 1;
        }
        match seat {
            Seat::Usual => taken.usual += 1,
            Seat::Reserve => taken.reserve += 1,
        }
        taken.show();
        Ok(Place { places: Arc::clone(self), address, seat })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match self.seat {
            Seat::Usual => taken.usual = taken.usual.saturating_sub(1),
            Seat::Reserve => taken.reserve = taken.reserve.saturating_sub(1),
        }
        taken.show();
        if let Some(own) = taken.by_address.get_mut(&self.address) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let settings = ListenerSettings {
            connections_max: 2,
            reserve_max: 1,
            connections_per_address_max: Some(2),
            ..ListenerSettings::default()
        };
        let places = Places::new(&settings);
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let (one, _two) = (places.take(first).unwrap(), places.take(first).unwrap());
        assert_eq!(places.take(first).unwrap_err(), Full::Address);
        let three = places.take(second).unwrap();
        assert_eq!((one.seat, three.seat), (Seat::Usual, Seat::Reserve));
        assert_eq!(places.take(second).unwrap_err(), Full::All);
        drop((one, three));
        assert_eq!(places.taken.lock().unwrap().by_address.len(), 1, "an address without connections is forgotten");
        let _again = (places.take(first).unwrap(), places.take(second).unwrap());
    }
}
