//! Keeps a name from leading us into our own network: which addresses belong to this machine or to a private network, and a resolver that
//! gives out none of them. It looks at the addresses that are then connected to, so a name that means something else a moment later is
//! held to the same rule. An address that is written down as one is not looked up, and so not its business.

use std::{
    error::Error,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::runtime::deferred::push::PrivateNames;

/// A name that leads to addresses of this machine or its network, and nowhere else. Says no address: who reads it may be a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeadsInward;

impl fmt::Display for LeadsInward {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("its name leads into this machine or a private network, which is not allowed")
    }
}

impl Error for LeadsInward {}

impl LeadsInward {
    /// Whether it is behind this error.
    pub fn is_behind(error: &(dyn Error + 'static)) -> bool {
        let mut next = Some(error);
        while let Some(error) = next {
            // An error of I/O shows what is inside it only in this way.
            let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if error.is::<Self>() || inside.is_some_and(<dyn Error + Send + Sync>::is::<Self>) {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// Whether an address belongs to this machine, to a private network, or to nobody at all.
pub fn leads_inward(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_inward_v4(address),
        IpAddr::V6(address) => is_inward_v6(address),
    }
}

fn is_inward_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        // "This network"; shared between carriers and customers; for measurements; protocols; for later.
        || first == 0
        || (first == 100 && (64..128).contains(&second))
        || (first == 198 && (18..20).contains(&second))
        || (first == 192 && second == 0 && third == 0)
        || first >= 240
}

fn is_inward_v6(address: Ipv6Addr) -> bool {
    let [first, second, .., last_but_one, last] = address.segments();
    if let Some(within) = embedded_v4(address) {
        return is_inward_v4(within);
    }
    let is_zero_but_last = address.segments()[..6].iter().all(|segment| *segment == 0);
    // All of ::/96 (unspecified, loopback, the old way to write IPv4), link-local, site-local, unique local, multicast, documentation.
    (is_zero_but_last && (last_but_one, last) != (0xffff, 0xffff))
        || first & 0xffc0 == 0xfe80
        || first & 0xffc0 == 0xfec0
        || first & 0xfe00 == 0xfc00
        || first & 0xff00 == 0xff00
        || (first == 0x2001 && second == 0x0db8)
}

/// The IPv4 address that an IPv6 one stands for: mapped, translated (NAT64), or tunnelled (6to4).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [first, second, third, .., last_but_one, last] = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let is_nat64 = first == 0x0064 && second == 0xff9b;
    if first == 0x2002 {
        return Some(of(second, third));
    }
    address.to_ipv4_mapped().or_else(|| is_nat64.then(|| of(last_but_one, last)))
}

/// Looks names up as the system does, and keeps what leads inward to itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutwardResolver {
    pub(super) private_names: PrivateNames,
}

impl Resolve for OutwardResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let private_names = self.private_names;
        Box::pin(async move {
            let says_so_itself = name.as_str().eq_ignore_ascii_case("localhost");
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed = if says_so_itself { PrivateNames::Allowed } else { private_names };
            let given = given_out(found, allowed)?;
            Ok(Box::new(given.into_iter()) as Addrs)
        })
    }
}

fn given_out(found: Vec<SocketAddr>, private_names: PrivateNames) -> Result<Vec<SocketAddr>, LeadsInward> {
    if private_names == PrivateNames::Allowed || found.is_empty() {
        return Ok(found);
    }
    let outward: Vec<SocketAddr> = found.into_iter().filter(|address| !leads_inward(address.ip())).collect();
    if outward.is_empty() { Err(LeadsInward) } else { Ok(outward) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_addresses_lead_inward() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.5",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(leads_inward(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "198.20.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::",
        ] {
            assert!(!leads_inward(address.parse().unwrap()), "{address}");
        }
    }

    /// What a name that means one thing now and another in a moment can give: only what leads outward is connected to.
    #[test]
    fn of_several_addresses_those_that_lead_inward_are_kept_back() {
        let of = |addresses: &[&str]| -> Vec<SocketAddr> {
            addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect()
        };
        for (found, private_names, want) in [
            (of(&["1.1.1.1", "127.0.0.1", "::1"]), PrivateNames::Refused, Ok(of(&["1.1.1.1"]))),
            (of(&["10.0.0.1", "fd12::1"]), PrivateNames::Refused, Err(LeadsInward)),
            (of(&["10.0.0.1"]), PrivateNames::Allowed, Ok(of(&["10.0.0.1"]))),
            (of(&[]), PrivateNames::Refused, Ok(of(&[]))),
        ] {
            assert_eq!(given_out(found.clone(), private_names), want, "{found:?}");
        }
    }

    #[test]
    fn it_is_found_behind_other_errors() {
        assert!(LeadsInward::is_behind(&io::Error::other(LeadsInward)));
        assert!(!LeadsInward::is_behind(&io::Error::other("something else")));
    }
}
