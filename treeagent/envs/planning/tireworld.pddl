; Every drive ends in a flat tire, and a car with a flat tire stands still until a spare is used up.
(define (domain tireworld)
  (:requirements :strips :typing :negative-preconditions)
  (:types place)
  (:predicates
    (vehicle-at ?place - place)
    (spare-in ?place - place)
    (road ?from - place ?to - place)
    (flattire))
  (:action move-car
    :parameters (?from - place ?to - place)
    :precondition (and (vehicle-at ?from) (road ?from ?to) (not (flattire)))
    :effect (and (vehicle-at ?to) (flattire) (not (vehicle-at ?from))))
  (:action changetire
    :parameters (?place - place)
    :precondition (and (vehicle-at ?place) (spare-in ?place) (flattire))
    :effect (and (not (flattire)) (not (spare-in ?place)))))
