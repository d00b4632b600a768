; Trucks drive along the roads of a city, a plane flies between airports, and packages ride in them.
(define (domain logistics)
  (:requirements :strips :typing)
  (:types package vehicle - thing truck plane - vehicle place)
  (:predicates
    (at ?thing - thing ?place - place)
    (in ?package - package ?vehicle - vehicle)
    (road ?from - place ?to - place)
    (air ?from - place ?to - place))
  (:action load
    :parameters (?package - package ?vehicle - vehicle ?place - place)
    :precondition (and (at ?package ?place) (at ?vehicle ?place))
    :effect (and (in ?package ?vehicle) (not (at ?package ?place))))
  (:action unload
    :parameters (?package - package ?vehicle - vehicle ?place - place)
    :precondition (and (in ?package ?vehicle) (at ?vehicle ?place))
    :effect (and (at ?package ?place) (not (in ?package ?vehicle))))
  (:action drive
    :parameters (?truck - truck ?from - place ?to - place)
    :precondition (and (at ?truck ?from) (road ?from ?to))
    :effect (and (at ?truck ?to) (not (at ?truck ?from))))
  (:action fly
    :parameters (?plane - plane ?from - place ?to - place)
    :precondition (and (at ?plane ?from) (air ?from ?to))
    :effect (and (at ?plane ?to) (not (at ?plane ?from)))))
