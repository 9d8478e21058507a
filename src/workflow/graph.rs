//! Questions about who depends on whom. Steps are numbers here; nothing else is known of them.

/// For each step the steps that must end before it.
pub type Dependencies = Vec<Vec<usize>>;

/// Cycles: as many as have to be broken so that none is left.
pub fn cycles(dependencies: &Dependencies) -> Vec<Vec<usize>> {
    let mut left = dependencies.clone();
    let mut found = Vec::new();
    // Each round takes one dependency away, so it ends.
    while let Some(around) = cycle(&left) {
        if let [.., last, first] = around.as_slice()
            && let Some(needs) = left.get_mut(*last)
        {
            needs.retain(|need| need != first);
        }
        found.push(around);
    }
    found
}

/// A cycle, if there is one: its steps in the order of dependence, the first repeated at the end.
pub fn cycle(dependencies: &Dependencies) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; dependencies.len()];
    for start in 0..dependencies.len() {
        if marks[start] != Mark::New {
            continue;
        }
        // The path from `start`, each step with the number of its dependencies that were followed.
        let mut path = vec![(start, 0)];
        marks[start] = Mark::OnPath;
        while let Some((step, followed)) = path.last_mut() {
            let Some(next) = dependencies[*step].get(*followed).copied() else {
                marks[*step] = Mark::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match marks[next] {
                Mark::Done => {}
                Mark::New => {
                    marks[next] = Mark::OnPath;
                    path.push((next, 0));
                }
                Mark::OnPath => {
                    let around = path.iter().map(|(step, _)| *step).skip_while(|step| *step != next);
                    return Some(around.chain([next]).collect());
                }
            }
        }
    }
    None
}

/// Every step after all that it depends on; among those that are free, the author's order. There must be no cycle.
pub fn order(dependencies: &Dependencies) -> Vec<usize> {
    let mut ordered = Vec::with_capacity(dependencies.len());
    let mut placed = vec![false; dependencies.len()];
    while let Some(next) =
        (0..dependencies.len()).find(|step| !placed[*step] && dependencies[*step].iter().all(|needed| placed[*needed]))
    {
        placed[next] = true;
        ordered.push(next);
    }
    ordered
}

/// For each step whether `of` depends on it, directly or not.
pub fn ancestors(dependencies: &Dependencies, of: usize) -> Vec<bool> {
    let mut found = vec![false; dependencies.len()];
    let mut open = dependencies[of].clone();
    while let Some(step) = open.pop() {
        if !found[step] {
            found[step] = true;
            open.extend(&dependencies[step]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found_and_named() {
        for (dependencies, want) in [
            (vec![], None),
            (vec![vec![]], None),
            (vec![vec![0]], Some(vec![0, 0])),
            (vec![vec![1], vec![0]], Some(vec![0, 1, 0])),
            (vec![vec![1], vec![2], vec![3], vec![1]], Some(vec![1, 2, 3, 1])),
            (vec![vec![], vec![0], vec![0], vec![1, 2]], None),
        ] {
            assert_eq!(cycle(&dependencies), want, "{dependencies:?}");
        }
        for (dependencies, want) in [
            (vec![vec![1], vec![0], vec![3], vec![2]], vec![vec![0, 1, 0], vec![2, 3, 2]]),
            (vec![vec![1, 2], vec![0], vec![0]], vec![vec![0, 1, 0], vec![0, 2, 0]]),
            (vec![vec![1], vec![]], vec![]),
        ] {
            assert_eq!(cycles(&dependencies), want, "{dependencies:?}");
        }
    }

    #[test]
    fn the_order_is_the_authors_where_it_is_free() {
        for (dependencies, want) in [
            (vec![vec![], vec![], vec![]], vec![0, 1, 2]),
            (vec![vec![2], vec![], vec![]], vec![1, 2, 0]),
            (vec![vec![], vec![0], vec![0], vec![1, 2]], vec![0, 1, 2, 3]),
        ] {
            assert_eq!(order(&dependencies), want, "{dependencies:?}");
        }
    }

    #[test]
    fn ancestors_reach_all_the_way() {
        let diamond = vec![vec![], vec![0], vec![0], vec![1, 2], vec![]];
        assert_eq!(ancestors(&diamond, 3), [true, true, true, false, false]);
        assert_eq!(ancestors(&diamond, 0), [false; 5]);
    }
}
