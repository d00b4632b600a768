; Blocks stand on a table or on one another, and a hand holds one at a time.
(define (domain blocks)
  (:requirements :strips :typing)
  (:types block)
  (:predicates
    (on ?upper - block ?lower - block)
    (ontable ?block - block)
    (clear ?block - block)
    (holding ?block - block)
    (handempty))
  (:action pick-up
    :parameters (?x - block)
    :precondition (and (handempty) (clear ?x) (ontable ?x))
    :effect (and (holding ?x) (not (handempty)) (not (clear ?x)) (not (ontable ?x))))
  (:action put-down
    :parameters (?x - block)
    :precondition (holding ?x)
    :effect (and (ontable ?x) (clear ?x) (handempty) (not (holding ?x))))
  (:action stack
    :parameters (?x - block ?y - block)
    :precondition (and (holding ?x) (clear ?y))
    :effect (and (on ?x ?y) (clear ?x) (handempty) (not (holding ?x)) (not (clear ?y))))
  (:action unstack
    :parameters (?x - block ?y - block)
    :precondition (and (handempty) (clear ?x) (on ?x ?y))
    :effect (and (holding ?x) (clear ?y) (not (handempty)) (not (clear ?x)) (not (on ?x ?y)))))
