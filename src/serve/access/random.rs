//! Randomness that nobody can guess, for keys and secrets.

/// `N` random bytes from the system.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], std::io::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(format!("no randomness: {error}")))?;
    Ok(bytes)
}
