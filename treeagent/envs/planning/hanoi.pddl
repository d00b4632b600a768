; Discs lie on pegs or on larger discs, and one free disc moves at a time.
(define (domain hanoi)
  (:requirements :strips :typing)
  (:types disc peg - place)
  (:predicates
    (on ?disc - disc ?place - place)
    (clear ?place - place)
    (smaller ?place - place ?disc - disc))
  (:action move
    :parameters (?disc - disc ?from - place ?to - place)
    :precondition (and (smaller ?to ?disc) (on ?disc ?from) (clear ?disc) (clear ?to))
    :effect (and (on ?disc ?to) (clear ?from) (not (on ?disc ?from)) (not (clear ?to)))))
